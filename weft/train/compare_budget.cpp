#include "weft/train/compare_budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "weft/core/atomic_file.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"
#include "weft/run/found_lambda.h"
#include "weft/train/compare_runs.h"

namespace weft {
namespace {

// The options that a time per step depends on; recipes and patterns are those of entries.
Json timed_options(const CompareOptions& options) {
  Json all = options_of(options, {"dense", "", 0}, 0).to_json();
  for (const OptionField& field : option_fields()) {
    const bool of_a_run = field.name == "recipe" || field.name == "pattern" || field.name == "seed";
    if ((of_a_run || field.may_change) && field.name != "threads") all.erase(field.name);
  }
  all.sort_members();
  return all;
}

// A recipe at a pattern: "dense", "sr-ste@2:4".
std::string key_of(const CompareEntry& entry) {
  return is_dense(entry) ? "dense" : counted_name(entry);
}

// budget.json.
class BudgetFile {
 public:
  BudgetFile(const std::filesystem::path& folder, const CompareOptions& options)
      : path_(folder / "budget.json"),
        record_({{"format", "weft.budget"},
                 {"version", 1},
                 {"seconds", options.budget},
                 {"rehearsal_steps", kRehearsal},
                 {"options", timed_options(options)},
                 {"runs", Json::object()}}) {
    std::error_code failure;
    if (!std::filesystem::exists(path_, failure)) return;
    const std::string name = printable(path_.string(), 4096);
    Json saved = Json::parse(read_small_file(path_), name);
    WEFT_CHECK(saved.is_object() && saved.contains("format") && saved["format"] == "weft.budget" &&
                   saved.contains("version") && saved["version"] == 1 &&
                   saved.contains("seconds") && saved["seconds"].is_number() &&
                   saved.contains("options") && saved.contains("runs") && saved["runs"].is_object(),
               "{}: not the steps of a budget, as this weft writes them", name);
    WEFT_CHECK(saved["seconds"].get<double>() == options.budget,
               "{}: the budget is {} s, not {} s: choose another folder", name,
               saved["seconds"].get<double>(), options.budget);
    WEFT_CHECK(saved["options"].dump() == Json::parse(record_["options"].dump(), name).dump(),
               "{}: steps were counted with other options: choose another folder", name);
    record_ = std::move(saved);
  }

  // 0: not counted yet.
  int64_t steps_of(const CompareEntry& entry) const {
    const Json& runs = record_["runs"];
    if (!runs.contains(key_of(entry))) return 0;
    const int64_t steps = runs[key_of(entry)]["steps"].get<int64_t>();
    WEFT_CHECK(steps >= 1, "{}: {} steps for {}", printable(path_.string(), 4096), steps,
               printable(key_of(entry)));
    return steps;
  }
  void set(const CompareEntry& entry, int64_t steps, double step_seconds, double ratio) {
    record_["runs"][key_of(entry)] = {
        {"steps", steps}, {"step_ms", 1e3 * step_seconds}, {"ratio", ratio}};
  }
  void write() const {
    std::error_code failure;  // what cannot be written says so itself
    std::filesystem::create_directories(path_.parent_path(), failure);
    write_file_atomically(path_, record_.dump(2) + "\n");
  }

 private:
  std::filesystem::path path_;
  Json record_;
};

// A run of the whole schedule, as short as that goes. What costs no time in a step is left out.
CompareOptions rehearsal_of(const CompareOptions& options) {
  CompareOptions short_runs = options;
  short_runs.budget = 0.0;
  short_runs.seeds = 1;
  short_runs.run.steps = kRehearsal;
  short_runs.run.eval_every = 0;
  short_runs.run.eval_samples = 1;
  short_runs.run.checkpoint_every = 0;
  short_runs.run.dense_flips = false;
  short_runs.run.exports = "dense";
  return short_runs;
}

}  // namespace

bool count_steps(const std::filesystem::path& folder, const CompareOptions& options,
                 std::vector<CompareEntry>& entries, const TrainerSetup& setup,
                 const std::function<void(double)>& progress) {
  BudgetFile file(folder, options);
  std::vector<CompareEntry> rehearsed = {entries.front()};
  for (CompareEntry& entry : entries) {
    entry.steps = file.steps_of(entry);
    if (entry.steps > 0 || is_dense(entry)) continue;
    rehearsed.push_back({with_lambda(entry.recipe, 0.0), entry.pattern, 0});
  }
  rehearsed.front().steps = 0;
  if (rehearsed.size() == 1 && entries.front().steps > 0) return true;

  const CompareOptions short_runs = rehearsal_of(options);
  const auto where = folder / "budget";
  remember_plans(where, short_runs, rehearsed, *setup.planner);
  Turns turns(where);
  turns.assign(rehearsed, short_runs.run.seed);
  if (setup.listener != nullptr) {
    setup.listener->on_note(
        fmt::format("a rehearsal of {} steps of each recipe says how many steps {} s are",
                    kRehearsal, options.budget));
  }
  if (!train_in_turns(where, short_runs, rehearsed, turns, setup, progress)) return false;

  const int64_t seed = short_runs.run.seed;
  size_t next = 1;
  for (CompareEntry& entry : entries) {
    if (entry.steps > 0) continue;
    const CompareEntry& of = is_dense(entry) ? rehearsed.front() : rehearsed[next++];
    const double seconds =
        run_seconds(where / name_of(of, seed), kRehearsal) / static_cast<double>(kRehearsal);
    const double dense =
        run_seconds(where / turns.dense_of(of, seed), kRehearsal) / static_cast<double>(kRehearsal);
    const double ratio = dense / seconds;
    const double steps = is_dense(entry) ? options.budget / seconds
                                         : static_cast<double>(entries.front().steps) * ratio;
    WEFT_CHECK(steps < 1e12, "{} s are {} steps of {}: too many", options.budget, steps,
               entry.recipe);
    entry.steps = std::max<int64_t>(1, static_cast<int64_t>(steps));
    file.set(entry, entry.steps, seconds, ratio);
  }
  file.write();
  return true;
}

}  // namespace weft
