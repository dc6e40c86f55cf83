// Trial: dense and sparse take turns on the products of a run, and the quartiles of their ratios
// decide.
//
// In its first steps one layer of every shape computes each product in every way, and reports the
// time of each in that step, with packing, copies and sampling. Both ways run on the same machine
// at the same time, busy or not, so
//
//   ratio = dense time / sparse time        of one step
//
// varies less than the times do. Sparse wins if the median of the ratios is above the margin
// (planner.h). If the margin is between their quartiles, the trial first runs as many steps again.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/plan/way.h"

namespace weft {

class Trial {
 public:
  // Steps of a trial. The first one only warms up: it builds primitives and touches memory for the
  // first time. One slow step does not move the quartiles of fifteen samples.
  static constexpr int64_t kSteps = 16;
  // Fewer samples than this decide nothing.
  static constexpr size_t kFewest = 5;

  // ways: the first one is dense.
  explicit Trial(std::vector<Way> ways) : ways_(std::move(ways)), ms_(ways_.size()) {}

  std::span<const Way> ways() const { return ways_; }
  // One step: milliseconds of each way.
  void add(std::span<const double> ms);
  size_t samples() const { return ms_.front().size(); }

  struct Verdict {
    Way dense, sparse;       // the fastest of either
    double dense_ms = 0.0;   // lower quartile
    double sparse_ms = 0.0;  // dense_ms / ratio
    // Quartiles of dense / sparse.
    double low = 0.0, ratio = 0.0, high = 0.0;
  };
  // Of at least one sample.
  Verdict verdict() const;

 private:
  size_t fastest(bool sparse) const;  // by the median of its share of the first way's time

  std::vector<Way> ways_;
  std::vector<std::vector<double>> ms_;  // [ways][steps]
};

}  // namespace weft
