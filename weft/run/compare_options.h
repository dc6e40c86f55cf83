// What a comparison is made of: runs that differ in recipe, pattern and seed alone.
#pragma once

#include <string>
#include <vector>

#include "weft/run/run_options.h"

namespace weft {

struct CompareOptions {
  RunOptions run;  // recipe, pattern and seed are those of each run
  // "sr-ste", at every pattern, or "sr-ste@1:4", at this one. "dense" is added, for the times.
  std::vector<std::string> recipes;
  std::vector<std::string> patterns;
  double budget = 0.0;  // seconds of training for each run, instead of run.steps; 0: none
  int64_t seeds = 3;    // run.seed, run.seed + 1, ...
};

struct CompareEntry {
  std::string recipe;
  std::string pattern;  // empty for dense
  int64_t steps = 0;    // of its runs; 0: those of the options
};
// The rows to come. Throws Error if a recipe does not go with its pattern.
std::vector<CompareEntry> compare_entries(const CompareOptions& options);

// The seconds that a text stands for: "90", "300s", "10m", "1.5h". Throws Error.
double parse_duration(const std::string& text);

}  // namespace weft
