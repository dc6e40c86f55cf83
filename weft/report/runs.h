// Runs as a report shows them: read from their folders, and put together where they differ in the
// seed alone.
#pragma once

#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "weft/core/json.h"
#include "weft/run/found_lambda.h"
#include "weft/run/run_changes.h"
#include "weft/run/run_metrics.h"
#include "weft/run/run_options.h"
#include "weft/run/run_result.h"

namespace weft {

// What a report needs of every step: 150 bytes, where the line of the file has hundreds to thousands.
struct StepFigures {
  int64_t step = 0;
  double seconds = 0.0;                                              // of training so far
  double loss = 0.0, flip_rate = 0.0, density = 0.0, step_ms = 0.0;  // NaN: none
  double retained = 0.0;  // the mean over layers; NaN where it was not measured
  std::array<double, kStepParts.size()> part_ms{};
  bool measuring = false;
};
struct EvalFigures {
  int64_t step = 0;
  double seconds = 0.0;  // of training so far
  double loss = 0.0, accuracy = 0.0;
};

// A product of a layer: what the planner chose, and why.
struct ReportedProduct {
  std::string name;  // "fwd", "bwd_x_ragged"
  std::string choice, reason;
};
struct ReportedLayer {
  std::string name, kind, recipe, pattern, reason;
  std::vector<ReportedProduct> products;  // none before they are planned
};

struct ReportedRun {
  std::filesystem::path folder;
  std::string name;  // of the folder; unique within a report
  RunOptions options;
  std::optional<double> lambda;    // that decay=auto has found
  std::vector<RunChange> changes;  // that led to these options
  std::map<std::string, std::string> environment;
  std::vector<ReportedLayer> layers;
  std::optional<RunResult> result;  // if the run is finished
  std::vector<StepFigures> steps;
  std::vector<EvalFigures> evals;
  Json
      last_layers;  // the figures of each layer in the last step, `retained` of the last that has it

  int64_t last_step() const { return steps.empty() ? 0 : steps.back().step; }
  bool diverged() const;  // the loss of a step or an evaluation was not finite
};

// Folders of runs among the arguments; a folder that is none but holds some, as that of a
// comparison, stands for them (without the dense runs that are there for the time of others:
// "dense-seed1-turns2"). Each once. Throws Error that names an argument without a run.
std::vector<std::filesystem::path> run_folders(const std::vector<std::string>& arguments);

// A name for each: that of its folder, with a number where several have the same.
std::vector<std::string> run_names(const std::vector<std::filesystem::path>& folders);

// Throws Error that names the file if one is missing or malformed.
ReportedRun read_reported_run(const std::filesystem::path& folder, const std::string& name);

// What `weft compare` measured of a recipe at a pattern (compare.json).
struct ComparedSpeed {
  double ratio = 0.0, low = 0.0, high = 0.0;  // time of dense / of this one
};

// Runs with the same options but for the seed.
struct Variant {
  std::string name;  // "s-ste 2:4", with the options in which the variants differ
  int style = 0;     // of its curves: 0 for a dense one
  bool dense = false;
  std::vector<const ReportedRun*> runs;
  std::optional<ComparedSpeed> speed;
};

// Dense ones first, then in the order of the runs.
std::vector<Variant> variants_of(const std::vector<ReportedRun>& runs);

}  // namespace weft
