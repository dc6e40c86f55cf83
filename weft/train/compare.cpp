#include "weft/train/compare.h"

#include <cmath>
#include <map>

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/checkpoint/stored_weight.h"
#include "weft/core/text.h"
#include "weft/mask/verify.h"
#include "weft/run/resume_options.h"
#include "weft/run/run_folder.h"
#include "weft/train/compare_budget.h"
#include "weft/train/compare_runs.h"
#include "weft/train/step_gradients.h"

namespace weft {
namespace {

// Over the whole run: run_seconds.
double seconds_per_step(const std::filesystem::path& folder) {
  const int64_t steps = resume_options(folder).steps;
  return run_seconds(folder, steps) / static_cast<double>(steps);
}

CompareRow row_of(const std::filesystem::path& folder, const CompareOptions& options,
                  const CompareEntry& entry, const Turns& turns, bool text) {
  CompareRow row;
  row.recipe = entry.recipe;
  row.pattern = entry.pattern;
  row.steps = options_of(options, entry, 0).steps;
  std::vector<double> ratios;
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    const int64_t number = options.run.seed + seed;
    const auto where = folder / name_of(entry, number);
    const auto dense = folder / turns.dense_of(entry, number);
    const RunResult result = read_run_result(where);
    row.metrics.push_back(text ? result.eval.loss : result.eval.accuracy);
    ratios.push_back(seconds_per_step(dense) / seconds_per_step(where));
    const auto share = 1.0 / static_cast<double>(options.seeds);
    row.step_seconds += share * result.step_seconds;
    row.train_seconds += share * result.train_seconds;
    row.flip_rate += share * result.flip_rate;
    const std::map<std::string, double> counted = read_run_result(dense).dense_flips;
    const auto flips = counted.find(counted_name(entry));
    if (flips != counted.end())
      row.dense_flips = row.dense_flips.value_or(0.0) + share * flips->second;
    row.density = result.density;
    row.products = result.products;
    row.file_bytes = result.packed_bytes > 0 ? result.packed_bytes : result.model_bytes;
    const std::string problem = broken_promise(where / "model.safetensors");
    const std::string found = !problem.empty()        ? problem
                              : entry.pattern.empty() ? "dense"
                              : result.ends_dense     ? "dense by design"
                                                      : "ok";
    if (row.check.empty() || !problem.empty()) row.check = found;
  }
  const auto count = static_cast<double>(row.metrics.size());
  for (const double metric : row.metrics) row.mean += metric / count;
  for (const double metric : row.metrics) row.sd += (metric - row.mean) * (metric - row.mean);
  row.sd = count > 1 ? std::sqrt(row.sd / (count - 1)) : 0.0;
  row.step_ratio = 0.0;
  for (const double ratio : ratios) row.step_ratio += ratio / count;
  row.ratio_low = *std::ranges::min_element(ratios);
  row.ratio_high = *std::ranges::max_element(ratios);
  return row;
}

}  // namespace

std::optional<CompareResult> compare(const std::filesystem::path& folder,
                                     const CompareOptions& options, const std::atomic<int>* stop,
                                     const std::function<void(double)>& progress,
                                     TrainerListener* listener) {
  WEFT_CHECK(!options.recipes.empty() && !options.patterns.empty() && options.seeds >= 1,
             "a comparison needs a recipe, a pattern and a seed");
  std::vector<CompareEntry> entries = compare_entries(options);
  options_of(options, entries.front(), 0).check();
  const std::string& plan = options.run.plan;
  WEFT_CHECK(plan == "auto" || plan == "dense" || plan == "sparse",
             "plan '{}': a comparison accepts auto, dense and sparse", printable(plan));
  TrainerSetup setup{.listener = listener,
                     .planner = std::make_shared<Planner>(parse_plan_mode(plan)),
                     .may_change = false,
                     .stop = stop};
  remember_plans(folder, options, entries, *setup.planner);
  const double rehearsal = options.budget > 0.0 ? 0.1 : 0.0;  // its share of the progress
  Turns turns(folder);
  try {
    if (options.budget > 0.0 && !count_steps(folder, options, entries, setup,
                                             [&](double done) { progress(rehearsal * done); })) {
      return std::nullopt;
    }
    for (int64_t seed = 0; seed < options.seeds; ++seed) {
      turns.assign(entries, options.run.seed + seed);
    }
    const auto after_rehearsal = [&](double done) {
      progress(rehearsal + (1.0 - rehearsal) * done);
    };
    if (!train_in_turns(folder, options, entries, turns, setup, after_rehearsal)) {
      return std::nullopt;
    }
  } catch (const Diverged& error) {
    throw Diverged(fmt::format("{}; a comparison with a lower --learning-rate needs another folder",
                               error.what()));
  }
  const bool text = DataSpec::parse(options.run.data).kind == DataKind::kText;
  CompareResult result{text ? "eval_loss" : "eval_accuracy", {}};
  for (const CompareEntry& entry : entries)
    result.rows.push_back(row_of(folder, options, entry, turns, text));
  return result;
}

std::string broken_promise(const std::filesystem::path& model) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  const Sparsity sparsity = checkpoint.sparsity();
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    const auto promised = sparsity.tensors.find(tensor.info.name);
    if (promised == sparsity.tensors.end()) continue;
    const auto& [pattern, axis, row_order, transposed] = promised->second;
    const StoredWeight weight{tensor, transposed};
    const std::vector<std::byte> bytes = read_weight(checkpoint, weight);
    const WeightShape shape = weight.shape();
    const Mask nonzero = nonzero_mask(tensor.info.dtype, bytes, shape.outs, shape.cols());
    const auto order = read_row_order(checkpoint, promised->second, shape.outs);
    int64_t violations = 0;
    if (axis != Axis::kOut) {
      violations += count_groups_in(nonzero, shape, pattern, order).violations;
    }
    if (axis != Axis::kIn) {
      violations += count_groups_out(nonzero, shape, pattern, order).violations;
    }
    if (violations > 0) {
      return fmt::format("{}: {} groups violate {}", tensor.info.name, violations, pattern.str());
    }
  }
  return "";
}

}  // namespace weft
