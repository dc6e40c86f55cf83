// The runs of a comparison: which there are, which dense run each takes turns with, and the turns.
// compare.cpp makes rows of them, compare_budget.cpp takes their time.
#pragma once

#include <atomic>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "weft/run/compare_options.h"
#include "weft/train/trainer.h"

namespace weft {

// The options of the run of an entry, with the steps of that entry, if it has its own.
RunOptions options_of(const CompareOptions& options, const CompareEntry& entry, int64_t seed);
inline bool is_dense(const CompareEntry& entry) { return entry.pattern.empty(); }
// The folder of the run below that of the comparison.
std::string name_of(const CompareEntry& entry, int64_t seed);
// By which a dense run counts the flips of an entry: the recipe at its pattern, in one spelling.
std::string counted_name(const CompareEntry& entry);

// The time of a whole run: medians of short stretches, so that a moment's disturbance does not
// count, and summed, so that every phase of it does. Steps in which the planner measured are taken
// to last as long as the others of their stretch, or of the run.
double run_seconds(const std::filesystem::path& folder, int64_t steps);

// Which dense run each run takes turns with, by their folders. In turns.json before any of them
// begins.
class Turns {
 public:
  explicit Turns(const std::filesystem::path& folder);

  // What is there from before there was a turns.json took turns with the first dense run.
  std::string dense_of(const CompareEntry& entry, int64_t seed) const;
  // Finds a dense run for entries that have none: the first one, unless it has begun without them.
  void assign(const std::vector<CompareEntry>& entries, int64_t seed);

 private:
  std::filesystem::path path() const { return folder_ / "turns.json"; }
  void save() const;

  std::filesystem::path folder_;
  std::map<std::string, std::string> dense_of_;
};

// Trains all runs of these entries that are not done, seed by seed, in turns. False if it was
// stopped: then they are saved. `progress` is called with the share of steps done.
bool train_in_turns(const std::filesystem::path& folder, const CompareOptions& options,
                    const std::vector<CompareEntry>& entries, const Turns& turns,
                    const TrainerSetup& setup, const std::function<void(double)>& progress);

// What runs that are there have chosen, before anything new is.
void remember_plans(const std::filesystem::path& folder, const CompareOptions& options,
                    const std::vector<CompareEntry>& entries, Planner& planner);

}  // namespace weft
