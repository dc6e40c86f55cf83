// The forward operands whose mask is chosen by magnitude: W̃ = m ∘ W.
//
//   top-n         m keeps the `keep` largest |w| of every group (of the sums of a cell)
//   fixed         the same of the weights with which sparse training begins, once, and without
//                 those that are zero then: what is zero stays zero
//   transposable  m maximises Σ m |w| over masks that keep `keep` per group along inputs and along
//                 outputs: the optimum of every tile (mask/solver.h)
//
// Of equal weights the lower index stays. Straight through: dW := dW̃, pruned weights included, so
// that they can come back (with a fixed mask the gradient is masked instead).
#pragma once

#include "weft/train/recipes/layer_state.h"

namespace weft {

// Finds state.forward anew if it is due at state.step.
void update_magnitude_mask(const LayerInput& input, LayerState& state);

}  // namespace weft
