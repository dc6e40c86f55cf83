#include "weft/train/recipes/magnitude_masks.h"

#include "weft/mask/solver.h"

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

void update_magnitude_mask(const LayerInput& input, LayerState& state) {
  if (!is_due(input, state)) return;
  const bool transposable = input.recipe->forward == ForwardPart::kTransposable;
  state.forward =
      find_mask(default_solver(transposable), input.weights, input.shape, input.pattern);
  if (input.recipe->forward == ForwardPart::kFixed) drop_zeros(input, state.forward);
}

}  // namespace weft
