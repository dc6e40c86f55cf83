#include "weft/train/recipes/schedule.h"

#include <cmath>

namespace weft {

namespace {

int64_t dense_head(const Recipe& recipe, int64_t total_steps) {
  return static_cast<int64_t>(
      std::ceil(recipe.schedule.dense_head * static_cast<double>(total_steps)));
}

}  // namespace

bool is_dense_step(const Recipe& recipe, int64_t step, int64_t total_steps) {
  if (recipe.forward == ForwardPart::kDense) return true;
  const auto total = static_cast<double>(total_steps);
  const int64_t head = dense_head(recipe, total_steps);
  const auto tail = static_cast<int64_t>(std::floor(recipe.schedule.dense_tail * total));
  return step < head || (tail > 0 && step >= total_steps - tail);
}

double removal_progress(const Recipe& recipe, int64_t step, int64_t total_steps) {
  const auto head = static_cast<double>(dense_head(recipe, total_steps));
  const double end = recipe.schedule.removal_end * static_cast<double>(total_steps);
  return end > head ? (static_cast<double>(step) - head) / (end - head) : 1.0;
}

bool is_order_step(const Recipe& recipe, int64_t step, int64_t total_steps) {
  const Schedule& s = recipe.schedule;
  if (s.order_every == 0 || step % s.order_every != 0) return false;
  const double end = s.order_end * static_cast<double>(total_steps);
  return step == 0 || total_steps == 0 || static_cast<double>(step) < end;
}

}  // namespace weft
