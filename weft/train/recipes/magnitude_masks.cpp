#include "weft/train/recipes/magnitude_masks.h"

#include <algorithm>

#include "weft/mask/row_order.h"
#include "weft/mask/solver.h"
#include "weft/train/recipes/schedule.h"

namespace weft {
namespace {

bool is_due(const LayerInput& input, const LayerState& state) {
  if (!state.sparse()) return true;
  if (input.recipe->forward == ForwardPart::kFixed) return false;
  return input.replaced || state.step % input.recipe->schedule.mask_every == 0;
}

// A group of fewer non-zeros than `keep` is filled up with zeros by the solver; rows that share
// are, with zeros that others do not have.
void drop_zeros(const LayerInput& input, Mask& mask) {
  const float* weight = input.weights;
  for (int64_t row = 0; row < mask.rows(); ++row) {
    for (int64_t col = 0; col < mask.cols(); ++col) {
      if (*weight++ == 0.0f) mask.set(row, col, false);
    }
  }
}

}  // namespace

bool update_row_order(const LayerInput& input, const Rng& rng, LayerState& state) {
  constexpr int kRounds = 16, kFirstRounds = 64;
  if (input.recipe->schedule.order_every == 0 || input.pattern.share() == 1) return false;
  const bool again = input.recipe->forward != ForwardPart::kFixed &&
                     is_order_step(*input.recipe, state.step, input.total_steps);
  if (state.sparse() && !again) return false;
  RowOrderOptions options;
  options.rng = rng;
  options.rounds = state.row_order.empty() ? kFirstRounds : kRounds;
  options.start = state.row_order;
  const bool transposable = input.recipe->forward == ForwardPart::kTransposable;
  std::vector<int64_t> found =
      find_row_order(input.weights, input.shape, input.pattern, transposable, options);
  if (std::ranges::is_sorted(found)) found.clear();  // as rows lie
  if (found == state.row_order) return false;
  state.row_order = std::move(found);
  return true;
}

void update_magnitude_mask(const LayerInput& input, bool moved, LayerState& state) {
  if (!moved && !is_due(input, state)) return;
  const bool transposable = input.recipe->forward == ForwardPart::kTransposable;
  state.forward = find_mask(default_solver(transposable), input.weights, input.shape, input.pattern,
                            std::span<const int64_t>(state.row_order));
  if (input.recipe->forward == ForwardPart::kFixed) drop_zeros(input, state.forward);
}

}  // namespace weft
