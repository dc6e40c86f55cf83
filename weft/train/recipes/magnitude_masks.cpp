#include "weft/train/recipes/magnitude_masks.h"

#include "weft/mask/solver.h"

namespace weft {
namespace {

bool is_due(const LayerInput& input, const LayerState& state) {
  if (!state.sparse()) return true;
  if (input.recipe->forward == ForwardPart::kFixed) return false;
  return input.replaced || state.step % input.recipe->schedule.mask_every == 0;
}

}  // namespace

void update_magnitude_mask(const LayerInput& input, LayerState& state) {
  if (!is_due(input, state)) return;
  const bool transposable = input.recipe->forward == ForwardPart::kTransposable;
  state.forward =
      find_mask(default_solver(transposable), input.weights, input.shape, input.pattern);
}

}  // namespace weft
