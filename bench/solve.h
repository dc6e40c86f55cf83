// Throughput of the mask solvers, against the minimum-cost flow of the paper (LEMON).
//
// One Gaussian matrix per pattern; in every round each solver runs once or, if it is quick, for a
// while, so that a noisy machine hits them alike. Figures are medians over the rounds; ratios are
// taken within a round. Before anything is timed, results are checked: any mask that breaks its
// pattern is an Error and no figure, and so is an exact one that misses the optimum of the first
// four blocks of rows, found by flow or, along inputs only, by selection in every group.
//
// A solver has to read every weight once: a plain read of the matrix, its bits added up on the same
// threads, is timed in every round too. It is the speed of memory if the matrix is larger than the
// caches.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/spread.h"
#include "weft/core/pattern.h"
#include "weft/mask/solver.h"

namespace weft::bench {

struct SolveOptions {
  int64_t size = 1024;  // of the square matrix
  std::vector<Pattern> patterns;
  std::vector<const Solver*> solvers;
  int rounds = 5;
  double seconds = 35;  // in all: fewer rounds if they would take longer, but at least one
  uint64_t seed = 1;
};

struct SolveRecord {
  std::string solver;
  Pattern pattern;
  bool transposable;
  int rounds;
  Spread mweights_per_s;
  double seconds;                       // of one run, median
  Spread part_of_read;                  // speed, in parts of that of a plain read
  std::optional<Spread> ratio_to_flow;  // if flow ran too
};

std::vector<SolveRecord> bench_solve(const SolveOptions& options,
                                     const std::function<void(double fraction)>& progress);

}  // namespace weft::bench
