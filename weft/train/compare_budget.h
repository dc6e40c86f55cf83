// compare --budget: as many steps for each recipe as it takes in the same time.
//
//   steps of dense = budget / seconds per step
//   of a recipe    = steps of dense · time of dense / time of the recipe
//
// The times are those of a rehearsal: every run with all its schedule laid over kRehearsal steps
// (dense head, sparse phase with the removal of lbc, dense tail), in turns with dense, as in the
// comparison itself. The planner's choices are made there, too, so that the runs to come measure
// nothing. Evaluations are not of the budget, nor is the search for a λ (find_lambda.h).
//
// The counts stand in budget.json before the first run begins, and are used again by every later
// call: a comparison that is stopped goes on with them, and a recipe that is added gets its own in
// proportion to those of dense.
#pragma once

#include <filesystem>
#include <functional>
#include <vector>

#include "weft/run/compare_options.h"
#include "weft/train/trainer.h"

namespace weft {

inline constexpr int64_t kRehearsal = 100;  // steps

// Gives each entry its steps. False if it was stopped (setup.stop). Throws Error if the folder has
// counts of another budget or of other options.
bool count_steps(const std::filesystem::path& folder, const CompareOptions& options,
                 std::vector<CompareEntry>& entries, const TrainerSetup& setup,
                 const std::function<void(double)>& progress);

}  // namespace weft
