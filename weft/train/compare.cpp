#include "weft/train/compare.h"

#include <cmath>
#include <deque>
#include <map>
#include <set>

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/checkpoint/stored_weight.h"
#include "weft/core/atomic_file.h"
#include "weft/core/median.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/mask/verify.h"
#include "weft/run/resume_options.h"
#include "weft/run/run_folder.h"
#include "weft/train/step_gradients.h"

namespace weft {
namespace {

constexpr int64_t kStepsPerTurn = 5;

RunOptions options_of(const CompareOptions& options, const CompareEntry& entry, int64_t seed) {
  RunOptions run = options.run.resolved().with_absolute_data();
  run.metrics_every = 1;  // the times of all steps are compared
  run.recipe = entry.recipe;
  run.pattern = entry.pattern.empty() ? options.patterns.front() : entry.pattern;
  run.seed = options.run.seed + seed;
  return run;
}

// Whose flips a dense run counts depends on the recipes that it began with.
void require_run_of(const std::filesystem::path& folder, const RunOptions& wanted) {
  require_same_options(folder, resume_options(folder), wanted, [](const OptionField& field) {
    return field.name == "threads" || field.name == "flips-of";
  });
}

// The time of a whole run: medians of short stretches, so that a moment's disturbance does not
// count, and summed, so that every phase of it does. Steps in which the planner measured are taken
// to last as long as the others of their stretch, or of the run.
double run_seconds(const std::filesystem::path& folder, int64_t steps) {
  const std::vector<StepSeconds> all = read_step_seconds(folder / "metrics.jsonl", steps);
  constexpr size_t kStretch = 4 * kStepsPerTurn;
  std::vector<double> every;
  for (const StepSeconds& step : all) every.push_back(step.seconds);
  const double usual = typical_seconds(all).value_or(median(every));
  double sum = 0.0;
  for (size_t begin = 0; begin < all.size(); begin += kStretch) {
    const size_t end = std::min(begin + kStretch, all.size());
    sum += typical_seconds(std::span(all).subspan(begin, end - begin)).value_or(usual) *
           static_cast<double>(end - begin);
  }
  return sum;
}

std::string name_of(const CompareEntry& entry, int64_t seed) {
  return run_folder_name(entry.recipe, entry.pattern, seed);
}
bool is_dense(const CompareEntry& entry) { return entry.pattern.empty(); }

// Whether a run has taken a step.
bool has_begun(const std::filesystem::path& folder) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(folder / "metrics.jsonl", failure);
  return !failure && bytes > 0;
}

// Which dense run each run takes turns with, by their folders. In turns.json before any of them
// begins.
class Turns {
 public:
  explicit Turns(const std::filesystem::path& folder) : folder_(folder) {
    std::error_code failure;
    if (!std::filesystem::exists(path(), failure)) return;
    const std::string name = printable(path().string(), 4096);
    const Json saved = Json::parse(read_small_file(path()), name);
    for (const Json::Member& member : saved.members()) {
      WEFT_CHECK(member.value.is_string() && is_folder_name(member.value.get<std::string>()),
                 "{}: '{}' is not interleaved with any run", name, printable(member.name));
      dense_of_[member.name] = member.value.get<std::string>();
    }
  }

  // What is there from before there was a turns.json took turns with the first dense run.
  std::string dense_of(const CompareEntry& entry, int64_t seed) const {
    const auto found = dense_of_.find(name_of(entry, seed));
    return found == dense_of_.end() ? first_dense(seed) : found->second;
  }

  // Finds a dense run for entries that have none: the first one, unless it has begun without them.
  void assign(const std::vector<CompareEntry>& entries, int64_t seed) {
    std::string fresh = first_dense(seed);
    for (int64_t number = 2; has_begun(folder_ / fresh); ++number) {
      fresh = fmt::format("{}-turns{}", first_dense(seed), number);
    }
    bool changed = false;
    for (const CompareEntry& entry : entries) {
      const std::string name = name_of(entry, seed);
      if (is_dense(entry) || dense_of_.contains(name)) continue;
      dense_of_[name] = has_begun(folder_ / name) ? first_dense(seed) : fresh;
      changed = true;
    }
    if (changed) save();
  }

 private:
  static std::string first_dense(int64_t seed) { return run_folder_name("dense", "", seed); }
  static bool is_folder_name(const std::string& name) {
    return name.starts_with("dense-seed") && name.find('/') == std::string::npos;
  }
  std::filesystem::path path() const { return folder_ / "turns.json"; }
  void save() const {
    Json all = Json::object();
    for (const auto& [run, dense] : dense_of_) all.append(run, dense);
    std::error_code failure;  // what cannot be written says so itself
    std::filesystem::create_directories(folder_, failure);
    write_file_atomically(path(), all.dump(2) + "\n");
  }

  std::filesystem::path folder_;
  std::map<std::string, std::string> dense_of_;
};

// By which a dense run counts the flips of an entry: the recipe at its pattern, in one spelling.
std::string counted_name(const CompareEntry& entry) {
  if (is_dense(entry)) return "";
  return RecipeAtPattern{entry.recipe, Pattern::parse(entry.pattern)}.str();
}

// The recipes whose masks a dense run counts: of those that it takes turns with, each at its
// pattern. Not lbc, whose masks follow from scores.
std::vector<std::string> flips_of(const std::vector<CompareEntry>& entries, const Turns& turns,
                                  const std::string& dense, int64_t seed) {
  std::vector<std::string> counted;
  for (const CompareEntry& entry : entries) {
    if (is_dense(entry) || turns.dense_of(entry, seed) != dense) continue;
    if (Recipe::parse(entry.recipe).forward->scores != nullptr) continue;
    counted.push_back(counted_name(entry));
  }
  return counted;
}

// The runs of one seed, those that are not done, and all dense runs that they take turns with.
class SeedRuns {
 public:
  // Throws Stopped if `stop` is set before all have begun.
  SeedRuns(const std::filesystem::path& folder, const CompareOptions& options, int64_t seed,
           const Turns& turns, const TrainerSetup& setup, const std::atomic<int>* stop)
      : folder_(folder), setup_(setup), stop_(stop) {
    const std::vector<CompareEntry> entries = compare_entries(options);
    std::set<std::string> dense;
    for (const CompareEntry& entry : entries) {
      RunOptions run = options_of(options, entry, seed);
      const std::string with = turns.dense_of(entry, run.seed);
      if (dense.insert(with).second) {
        RunOptions other = options_of(options, {"dense", ""}, seed);
        if (other.dense_flips) other.flips_of = flips_of(entries, turns, with, run.seed);
        add(with, other);
      }
      if (!is_dense(entry)) add(name_of(entry, run.seed), run);
    }
  }

  int64_t all_steps() const { return all_steps_; }
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

  // Whether all are finished; if not, they are saved.
  bool finish(const std::atomic<int>* stop) {
    while (steps_left() == 0 && !trainers_.empty()) {
      if (!trainers_.front().finish(stop)) break;
      trainers_.pop_front();
    }
    for (Trainer& trainer : trainers_) trainer.save_checkpoint();
    return trainers_.empty();
  }

 private:
  void add(const std::string& name, const RunOptions& wanted) {
    if (stop_ != nullptr && *stop_ != 0) throw Stopped();
    const auto where = folder_ / name;
    all_steps_ += wanted.steps;
    std::error_code failure;
    const bool begun = std::filesystem::exists(where / "run.json", failure);
    if (begun) require_run_of(where, wanted);
    if (is_finished_run(where)) return;
    RunOptions run = wanted;
    if (begun) run.flips_of = resume_options(where).flips_of;
    if (!source_) source_ = make_batch_source(run);
    RunParts parts{run, source_, make_model(run, source_->shape())};
    trainers_.push_back(begun ? Trainer::resume(where, std::move(parts), setup_)
                              : Trainer::begin(where, std::move(parts), setup_));
  }

  std::filesystem::path folder_;
  TrainerSetup setup_;
  const std::atomic<int>* stop_;
  std::shared_ptr<BatchSource> source_;
  std::deque<Trainer> trainers_;
  int64_t all_steps_ = 0;
};

CompareRow row_of(const std::filesystem::path& folder, const CompareOptions& options,
                  const CompareEntry& entry, const Turns& turns, bool text) {
  CompareRow row;
  row.recipe = entry.recipe;
  row.pattern = entry.pattern;
  std::vector<double> ratios;
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    const int64_t number = options.run.seed + seed;
    const auto where = folder / name_of(entry, number);
    const auto dense = folder / turns.dense_of(entry, number);
    const RunResult result = read_run_result(where);
    row.metrics.push_back(text ? result.eval.loss : result.eval.accuracy);
    ratios.push_back(run_seconds(dense, options.run.steps) / run_seconds(where, options.run.steps));
    const auto share = 1.0 / static_cast<double>(options.seeds);
    row.step_seconds += share * result.step_seconds;
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

// What runs that are there have chosen, before anything new is.
void remember_plans(const std::filesystem::path& folder, const CompareOptions& options,
                    Planner& planner) {
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    for (const CompareEntry& entry : compare_entries(options)) {
      const auto where = folder / name_of(entry, options.run.seed + seed);
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
  Turns turns(folder);
  for (int64_t seed = 0; seed < options.seeds; ++seed)
    turns.assign(entries, options.run.seed + seed);
  try {
    for (int64_t seed = 0; seed < options.seeds; ++seed) {
      SeedRuns runs(folder, options, seed, turns, {listener, planner, /*may_change=*/false}, stop);
      runs.take_turns(stop, [&] {
        const auto all = static_cast<double>(runs.all_steps());
        const double done = 1.0 - static_cast<double>(runs.steps_left()) / all;
        progress((static_cast<double>(seed) + done) / static_cast<double>(options.seeds));
      });
      if (!runs.finish(stop)) return std::nullopt;
      planner->drop_trials();  // of layers that are gone
    }
  } catch (const Stopped&) {
    return std::nullopt;
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
