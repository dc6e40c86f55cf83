// compare: the same network trained by several recipes and patterns, fairly.
//
// For each seed all runs have the same budget, the same order of the data and the same first
// weights, and take turns of a few steps in one process: a noisy machine hits them alike, so that
// the times of their steps can be compared. Each run is a RunFolder of its own below the folder of
// the comparison; what was stopped goes on, and what is done stays.
//
// With a budget of seconds instead of steps, each recipe has as many steps as it takes in that time
// (compare_budget.h).
//
// A run is timed against a dense run that it took turns with from the first step. If there are new
// recipes and the dense run has begun without them, another one takes turns with them, in a folder
// of its own ("dense-seed1-turns2"); turns.json says which belongs to which.
#pragma once

#include <functional>

#include "weft/run/compare_options.h"
#include "weft/train/trainer.h"

namespace weft {

struct CompareRow {
  std::string recipe;
  std::string pattern;  // empty for dense
  std::vector<double> metrics;
  double mean = 0.0;
  double sd = 0.0;  // of the sample; 0 for one run
  // Time per step of the dense run that it took turns with / of this one, whole runs, mean over
  // seeds.
  double step_ratio = 1.0;
  double ratio_low = 1.0, ratio_high = 1.0;
  double step_seconds = 0.0;
  int64_t steps = 0;           // of each run
  double train_seconds = 0.0;  // that these took, mean over seeds
  double density = 1.0;
  double flip_rate = 0.0;  // in the sparse phase, as all flips are
  // By the masks of this recipe on the weights of the dense run (telemetry.h), if that is counted.
  std::optional<double> dense_flips;
  std::string products;     // that ran sparse
  std::string check;        // "ok", "dense by design", "dense", or what is wrong
  uint64_t file_bytes = 0;  // of the model; packed, if that was asked for and there are zeros
};

struct CompareResult {
  std::string metric;  // "eval_accuracy", "eval_loss"
  std::vector<CompareRow> rows;
};

// The folder of a run below that of its comparison: "s-ste-2of4-seed1".
std::string run_folder_name(const std::string& recipe, const std::string& pattern, int64_t seed);

// Goes on until all is done, or `stop` is set, which is looked at before every run begins, between
// steps and between batches of evaluations: then nothing is returned, and a later call with the
// same options continues. `progress` is called with the share of steps done. Throws Error if the
// folder has runs with other options.
std::optional<CompareResult> compare(const std::filesystem::path& folder,
                                     const CompareOptions& options, const std::atomic<int>* stop,
                                     const std::function<void(double)>& progress,
                                     TrainerListener* listener = nullptr);

// A model file held against its own promises: empty if it keeps them, or what is wrong.
std::string broken_promise(const std::filesystem::path& model);

}  // namespace weft
