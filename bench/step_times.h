// Where the time of training steps goes, over rounds in which dense steps take turns with them.
//
// Work that comes once in many steps (a mask every 16 at 4:8, a permutation every 100) is timed by itself
// and divided by that number: `rare_ms`. It counts as mask time.
#pragma once

#include <functional>
#include <vector>

#include "bench/spread.h"
#include "weft/layer/layer.h"
#include "weft/recipe/recipe.h"

namespace weft::bench {

struct StepTimes {
  double dense_ms = 0;  // a dense step
  double step_ms = 0;
  Spread ratio;        // dense / step: of the medians, with the spread of those within rounds
  double mask_ms = 0;  // parts of step_ms, as what follows
  double pack_ms = 0;  // with sampling
  double fwd_ms = 0, bwd_x_ms = 0, bwd_w_ms = 0;
  double other_ms = 0;  // the rest
};

class StepSamples {
 public:
  explicit StepSamples(double rare_ms) : rare_ms_(rare_ms) {}

  // A step, and the dense one of its round.
  void add(double step_ms, double dense_ms, const LayerTimes& times);
  // dense_ms: the median of all rounds.
  StepTimes medians(double dense_ms) const;

 private:
  double rare_ms_;
  std::vector<double> steps_, ratios_, mask_, pack_, fwd_, bwd_x_, bwd_w_;
};

double milliseconds(const std::function<void()>& body);

// Steps from one time that work is due that is not due at every step (masks, permutations, row
// orders) to the next; of several the shortest, so that nothing is charged too little. 1: none is.
int64_t rare_work_every(const Recipe& recipe, const Pattern& pattern);

}  // namespace weft::bench
