#include "weft/recipe/schedule.h"

#include <cmath>

namespace weft {

int64_t dense_head_steps(const Recipe& recipe, int64_t total_steps) {
  return static_cast<int64_t>(
      std::ceil(recipe.schedule.dense_head * static_cast<double>(total_steps)));
}

bool is_dense_step(const Recipe& recipe, int64_t step, int64_t total_steps) {
  if (recipe.is_dense()) return true;
  const auto total = static_cast<double>(total_steps);
  const int64_t head = dense_head_steps(recipe, total_steps);
  const auto tail = static_cast<int64_t>(std::floor(recipe.schedule.dense_tail * total));
  return step < head || (tail > 0 && step >= total_steps - tail);
}

double removal_progress(const Recipe& recipe, int64_t step, int64_t total_steps) {
  const auto head = static_cast<double>(dense_head_steps(recipe, total_steps));
  const double end = recipe.schedule.removal_end * static_cast<double>(total_steps);
  return end > head ? (static_cast<double>(step) - head) / (end - head) : 1.0;
}

int64_t mask_interval(const Recipe& recipe, const Pattern& pattern) {
  constexpr double kStepNanoseconds = 65.0, kShare = 0.02;
  if (!recipe.forward->by_magnitude) return 1;
  if (recipe.schedule.mask_every != Schedule::kAuto) return recipe.schedule.mask_every;
  if (!recipe.forward->transposable) return 1;
  const double solving = nanoseconds_per_weight(recipe.mask_solver(), pattern.group());
  return static_cast<int64_t>(std::ceil(solving / (kShare * kStepNanoseconds)));
}

bool comes_due(int64_t every, int64_t last, int64_t step) { return step / every > last / every; }

bool is_order_step(const Recipe& recipe, int64_t last, int64_t step, int64_t total_steps) {
  const Schedule& s = recipe.schedule;
  if (s.order_every == 0 || !comes_due(s.order_every, last, step)) return false;
  const double end = s.order_end * static_cast<double>(total_steps);
  return total_steps == 0 || static_cast<double>(step) < end;
}

}  // namespace weft
