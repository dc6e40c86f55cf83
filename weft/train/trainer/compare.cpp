#include "weft/train/trainer/compare.h"

#include <cmath>

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/median.h"
#include "weft/core/text.h"
#include "weft/mask/verify.h"
#include "weft/train/run/run_folder.h"

namespace weft {
namespace {

constexpr int64_t kStepsPerTurn = 5;

RunOptions options_of(const CompareOptions& options, const CompareEntry& entry, int64_t seed) {
  RunOptions run = options.run.resolved();
  run.recipe = entry.recipe;
  run.pattern = entry.pattern.empty() ? options.patterns.front() : entry.pattern;
  run.seed = options.run.seed + seed;
  return run;
}

void require_same_options(const std::filesystem::path& folder, RunOptions wanted) {
  const RunOptions there = resume_options(folder);
  for (const OptionField& field : option_fields()) {
    if (field.name == "threads" || field.get(there) == field.get(wanted)) continue;
    throw Error(fmt::format("{}: a run with --{} {}, and {} is asked for: choose another folder",
                            printable(folder.string(), 4096), field.name,
                            fmt::join(field.get(there), " "), fmt::join(field.get(wanted), " ")));
  }
}

bool is_done(const std::filesystem::path& folder) {
  std::error_code failure;
  return std::filesystem::exists(folder / "run.json", failure) &&
         read_run_record(folder)["status"] == "done";
}

// The time of a whole run: medians of short stretches, so that a moment's disturbance does not
// count, and summed, so that every phase of it does.
double run_seconds(const std::filesystem::path& folder, int64_t steps) {
  const std::vector<double> all = read_step_seconds(folder / "metrics.jsonl", steps);
  constexpr size_t kStretch = 4 * kStepsPerTurn;
  double sum = 0.0;
  for (size_t begin = 0; begin < all.size(); begin += kStretch) {
    const size_t end = std::min(begin + kStretch, all.size());
    const std::vector<double> stretch(all.begin() + static_cast<int64_t>(begin),
                                      all.begin() + static_cast<int64_t>(end));
    sum += median(stretch) * static_cast<double>(stretch.size());
  }
  return sum;
}

// The runs of one seed, those that are not done.
class SeedRuns {
 public:
  SeedRuns(const std::filesystem::path& folder, const CompareOptions& options, int64_t seed,
           const TrainerSetup& setup) {
    std::shared_ptr<BatchSource> source;
    for (const CompareEntry& entry : compare_entries(options)) {
      const RunOptions run = options_of(options, entry, seed);
      const auto where = folder / run_folder_name(entry.recipe, entry.pattern, run.seed);
      std::error_code failure;
      const bool begun = std::filesystem::exists(where / "run.json", failure);
      if (begun) require_same_options(where, run);
      if (is_done(where)) continue;
      if (!source) source = make_batch_source(run);
      RunParts parts{run, source, make_model(run, source->shape())};
      trainers_.push_back(begun ? Trainer::resume(where, std::move(parts), setup)
                                : Trainer::begin(where, std::move(parts), setup));
    }
  }

  int64_t steps_left() const {
    int64_t left = 0;
    for (const Trainer& trainer : trainers_) left += trainer.options().steps - trainer.step();
    return left;
  }

  // In one order and then in the other.
  void take_turns(const std::atomic<int>* stop, const std::function<void()>& progress) {
    bool forwards = true;
    while (steps_left() > 0 && (stop == nullptr || *stop == 0)) {
      for (size_t i = 0; i < trainers_.size(); ++i) {
        trainers_[forwards ? i : trainers_.size() - 1 - i].advance(kStepsPerTurn, stop);
        progress();
      }
      forwards = !forwards;
    }
  }

  void save() {
    for (Trainer& trainer : trainers_) trainer.save_checkpoint();
  }
  void finish() {
    for (Trainer& trainer : trainers_) trainer.finish();
  }

 private:
  std::vector<Trainer> trainers_;
};

CompareRow row_of(const std::filesystem::path& folder, const CompareOptions& options,
                  const CompareEntry& entry, bool text) {
  CompareRow row{entry.recipe, entry.pattern};
  std::vector<double> ratios;
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    const int64_t number = options.run.seed + seed;
    const auto where = folder / run_folder_name(entry.recipe, entry.pattern, number);
    const auto dense = folder / run_folder_name("dense", "", number);
    const RunResult result = read_run_result(where);
    row.metrics.push_back(text ? result.eval.loss : result.eval.accuracy);
    ratios.push_back(run_seconds(dense, options.run.steps) / run_seconds(where, options.run.steps));
    const auto share = 1.0 / static_cast<double>(options.seeds);
    row.step_seconds += share * result.step_seconds;
    row.flip_rate += share * result.flip_rate;
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

// What runs that are there have chosen, before anything new is.
void remember_plans(const std::filesystem::path& folder, const CompareOptions& options,
                    Planner& planner) {
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    for (const CompareEntry& entry : compare_entries(options)) {
      const auto where =
          folder / run_folder_name(entry.recipe, entry.pattern, options.run.seed + seed);
      std::error_code failure;
      if (!std::filesystem::exists(where / "run.json", failure)) continue;
      remember_plan(planner, read_run_record(where)["plan"], (where / "run.json").string());
    }
  }
}

}  // namespace

std::string run_folder_name(const std::string& recipe, const std::string& pattern, int64_t seed) {
  std::string name = recipe;
  if (!pattern.empty()) name += "-" + pattern;
  for (size_t colon; (colon = name.find(':')) != std::string::npos;) name.replace(colon, 1, "of");
  return fmt::format("{}-seed{}", name, seed);
}

std::optional<CompareResult> compare(const std::filesystem::path& folder,
                                     const CompareOptions& options, const std::atomic<int>* stop,
                                     const std::function<void(double)>& progress,
                                     TrainerListener* listener) {
  WEFT_CHECK(!options.recipes.empty() && !options.patterns.empty() && options.seeds >= 1,
             "a comparison needs a recipe, a pattern and a seed");
  const std::vector<CompareEntry> entries = compare_entries(options);
  options_of(options, entries.front(), 0).check();
  const std::string& plan = options.run.plan;
  WEFT_CHECK(plan == "auto" || plan == "dense" || plan == "sparse",
             "plan '{}': a comparison accepts auto, dense and sparse", printable(plan));
  const auto planner = std::make_shared<Planner>(parse_plan_mode(plan));
  remember_plans(folder, options, *planner);
  const double per_seed =
      static_cast<double>(entries.size()) * static_cast<double>(options.run.steps);
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    SeedRuns runs(folder, options, seed, {listener, planner});
    runs.take_turns(stop, [&] {
      const double done = per_seed - static_cast<double>(runs.steps_left());
      progress((static_cast<double>(seed) + done / per_seed) / static_cast<double>(options.seeds));
    });
    if (runs.steps_left() > 0) {
      runs.save();
      return std::nullopt;
    }
    runs.finish();
  }
  const bool text = DataSpec::parse(options.run.data).kind == DataKind::kText;
  CompareResult result{text ? "eval_loss" : "eval_accuracy", {}};
  for (const CompareEntry& entry : entries)
    result.rows.push_back(row_of(folder, options, entry, text));
  return result;
}

std::string broken_promise(const std::filesystem::path& model) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  const SparsityPlan plan = checkpoint.plan();
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    const auto promised = plan.tensors.find(tensor.info.name);
    if (promised == plan.tensors.end()) continue;
    const auto& [pattern, axis, row_order] = promised->second;
    std::vector<std::byte> bytes(tensor.info.bytes());
    checkpoint.read(tensor, 0, bytes);
    const WeightShape shape = WeightShape::of(tensor.info.shape);
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
