#include "weft/train/compare_runs.h"

#include <set>

#include "weft/core/atomic_file.h"
#include "weft/core/median.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/run/resume_options.h"
#include "weft/run/run_folder.h"
#include "weft/train/compare.h"

namespace weft {
namespace {

constexpr int64_t kStepsPerTurn = 5;  // of dense

// Whose flips a dense run counts depends on the recipes that it began with.
void require_run_of(const std::filesystem::path& folder, const RunOptions& wanted) {
  require_same_options(folder, resume_options(folder), wanted, [](const OptionField& field) {
    return field.name == "threads" || field.name == "flips-of";
  });
}

// Whether a run has taken a step.
bool has_begun(const std::filesystem::path& folder) {
  std::error_code failure;
  const auto bytes = std::filesystem::file_size(folder / "metrics.jsonl", failure);
  return !failure && bytes > 0;
}

std::string first_dense(int64_t seed) { return run_folder_name("dense", "", seed); }

bool is_folder_of_dense(const std::string& name) {
  return name.starts_with("dense-seed") && name.find('/') == std::string::npos;
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
  // entries: dense first. Throws Stopped if setup.stop is set before all have begun.
  SeedRuns(const std::filesystem::path& folder, const CompareOptions& options,
           const std::vector<CompareEntry>& entries, int64_t seed, const Turns& turns,
           const TrainerSetup& setup)
      : folder_(folder),
        setup_(setup),
        dense_steps_(options_of(options, entries.front(), seed).steps) {
    std::set<std::string> dense;
    for (const CompareEntry& entry : entries) {
      RunOptions run = options_of(options, entry, seed);
      const std::string with = turns.dense_of(entry, run.seed);
      if (dense.insert(with).second) {
        RunOptions other = options_of(options, entries.front(), seed);
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

  // In one order and then in the other. A run of more steps than dense takes more in its turn, so
  // that all end together.
  void take_turns(const std::function<void()>& progress) {
    for (int64_t turn = 0; steps_left() > 0 && !stopped(); ++turn) {
      for (size_t i = 0; i < trainers_.size(); ++i) {
        Trainer& trainer = trainers_[turn % 2 == 0 ? i : trainers_.size() - 1 - i];
        const auto steps_before = [&](int64_t turns) {
          return turns * kStepsPerTurn * trainer.options().steps / dense_steps_;
        };
        trainer.advance(steps_before(turn + 1) - steps_before(turn), setup_.stop);
        progress();
      }
    }
  }

  // Whether all are finished; if not, they are saved.
  bool finish() {
    while (steps_left() == 0 && !trainers_.empty()) {
      if (!trainers_.front().finish(setup_.stop)) break;
      trainers_.pop_front();
    }
    for (Trainer& trainer : trainers_) trainer.save_checkpoint();
    return trainers_.empty();
  }

 private:
  bool stopped() const { return setup_.stop != nullptr && *setup_.stop != 0; }
  void add(const std::string& name, const RunOptions& wanted) {
    if (stopped()) throw Stopped();
    const auto where = folder_ / name;
    all_steps_ += wanted.steps;
    std::error_code failure;
    const bool begun = std::filesystem::exists(where / "run.json", failure);
    if (begun) require_run_of(where, wanted);
    if (is_finished_run(where)) return;
    RunOptions run = wanted;
    if (begun) run.flips_of = resume_options(where).flips_of;
    if (!source_) source_ = make_batch_source(run);
    if (!teacher_) teacher_ = load_teacher(run);
    RunParts parts{run, source_, make_model(run, source_->shape()), teacher_};
    trainers_.push_back(begun ? Trainer::resume(where, std::move(parts), setup_)
                              : Trainer::begin(where, std::move(parts), setup_));
  }

  std::filesystem::path folder_;
  TrainerSetup setup_;
  int64_t dense_steps_;
  std::shared_ptr<BatchSource> source_;
  std::shared_ptr<const Teacher> teacher_;
  std::deque<Trainer> trainers_;
  int64_t all_steps_ = 0;
};

}  // namespace

std::string run_folder_name(const std::string& recipe, const std::string& pattern, int64_t seed) {
  std::string name = recipe;
  if (!pattern.empty()) name += "-" + pattern;
  for (size_t colon; (colon = name.find(':')) != std::string::npos;) name.replace(colon, 1, "of");
  return fmt::format("{}-seed{}", name, seed);
}

RunOptions options_of(const CompareOptions& options, const CompareEntry& entry, int64_t seed) {
  RunOptions run = options.run.resolved().with_absolute_data();
  run.metrics_every = 1;  // the times of all steps are compared
  if (entry.steps > 0) run.steps = entry.steps;
  run.recipe = entry.recipe;
  run.pattern = entry.pattern.empty() ? options.patterns.front() : entry.pattern;
  run.seed = options.run.seed + seed;
  return run;
}

std::string name_of(const CompareEntry& entry, int64_t seed) {
  return run_folder_name(entry.recipe, entry.pattern, seed);
}

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

Turns::Turns(const std::filesystem::path& folder) : folder_(folder) {
  std::error_code failure;
  if (!std::filesystem::exists(path(), failure)) return;
  const std::string name = printable(path().string(), 4096);
  const Json saved = Json::parse(read_small_file(path()), name);
  for (const Json::Member& member : saved.members()) {
    WEFT_CHECK(member.value.is_string() && is_folder_of_dense(member.value.get<std::string>()),
               "{}: '{}' is not interleaved with any run", name, printable(member.name));
    dense_of_[member.name] = member.value.get<std::string>();
  }
}

std::string Turns::dense_of(const CompareEntry& entry, int64_t seed) const {
  const auto found = dense_of_.find(name_of(entry, seed));
  return found == dense_of_.end() ? first_dense(seed) : found->second;
}

void Turns::assign(const std::vector<CompareEntry>& entries, int64_t seed) {
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

void Turns::save() const {
  Json all = Json::object();
  for (const auto& [run, dense] : dense_of_) all.append(run, dense);
  std::error_code failure;  // what cannot be written says so itself
  std::filesystem::create_directories(folder_, failure);
  write_file_atomically(path(), all.dump(2) + "\n");
}

std::string counted_name(const CompareEntry& entry) {
  if (is_dense(entry)) return "";
  return RecipeAtPattern{entry.recipe, Pattern::parse(entry.pattern)}.str();
}

bool train_in_turns(const std::filesystem::path& folder, const CompareOptions& options,
                    const std::vector<CompareEntry>& entries, const Turns& turns,
                    const TrainerSetup& setup, const std::function<void(double)>& progress) {
  try {
    for (int64_t seed = 0; seed < options.seeds; ++seed) {
      SeedRuns runs(folder, options, entries, seed, turns, setup);
      runs.take_turns([&] {
        const auto all = static_cast<double>(runs.all_steps());
        const double done = 1.0 - static_cast<double>(runs.steps_left()) / all;
        progress((static_cast<double>(seed) + done) / static_cast<double>(options.seeds));
      });
      if (!runs.finish()) return false;
      setup.planner->drop_trials();  // of layers that are gone
    }
  } catch (const Stopped&) {
    return false;
  }
  return true;
}

void remember_plans(const std::filesystem::path& folder, const CompareOptions& options,
                    const std::vector<CompareEntry>& entries, Planner& planner) {
  for (int64_t seed = 0; seed < options.seeds; ++seed) {
    for (const CompareEntry& entry : entries) {
      const auto where = folder / name_of(entry, options.run.seed + seed);
      std::error_code failure;
      if (!std::filesystem::exists(where / "run.json", failure)) continue;
      remember_plan(planner, read_run_record(where)["plan"], (where / "run.json").string());
    }
  }
}

}  // namespace weft
