#include "bench/step_times.h"

#include <algorithm>
#include <chrono>

#include "weft/recipe/schedule.h"

namespace weft::bench {

void StepSamples::add(double step_ms, double dense_ms, const LayerTimes& times) {
  steps_.push_back(step_ms);
  ratios_.push_back(dense_ms / (step_ms + rare_ms_));
  mask_.push_back(1e3 * times.mask);
  pack_.push_back(1e3 * times.pack);
  fwd_.push_back(1e3 * times.products[0]);
  bwd_x_.push_back(1e3 * times.products[1]);
  bwd_w_.push_back(1e3 * times.products[2]);
}

StepTimes StepSamples::medians(double dense_ms) const {
  StepTimes t;
  t.dense_ms = dense_ms;
  t.step_ms = median(steps_) + rare_ms_;
  t.ratio = spread_of(ratios_);
  t.ratio.median = dense_ms / t.step_ms;
  t.mask_ms = median(mask_) + rare_ms_;
  t.pack_ms = median(pack_);
  t.fwd_ms = median(fwd_);
  t.bwd_x_ms = median(bwd_x_);
  t.bwd_w_ms = median(bwd_w_);
  t.other_ms =
      std::max(0.0, t.step_ms - t.mask_ms - t.pack_ms - t.fwd_ms - t.bwd_x_ms - t.bwd_w_ms);
  return t;
}

double milliseconds(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

int64_t rare_work_every(const Recipe& recipe, const Pattern& pattern) {
  int64_t shortest = 0;
  for (const int64_t every : {mask_interval(recipe, pattern), recipe.schedule.permutation_every,
                              recipe.schedule.order_every}) {
    if (every > 1 && (shortest == 0 || every < shortest)) shortest = every;
  }
  return std::max<int64_t>(1, shortest);
}

}  // namespace weft::bench
