// The forward operands whose mask is chosen by magnitude: W̃ = m ∘ W.
//
//   top-n         m keeps the `keep` largest |w| of every group (of the sums of a cell)
//   fixed         the same of the weights with which sparse training begins, once, and without
//                 those that are zero then: what is zero stays zero
//   transposable  m maximises Σ m |w| over masks that keep `keep` per group along inputs and along
//                 outputs: the optimum of every tile (mask/solver.h)
//
// With a row order (recipe part order_every) it is places that share, and that follow each other
// along outputs; masks are kept as rows lie.
//
// Of equal weights the lower index stays. Straight through: dW := dW̃, pruned weights included, so
// that they can come back (with a fixed mask the gradient is masked instead).
#pragma once

#include "weft/core/rng.h"
#include "weft/train/recipes/layer_state.h"

namespace weft {

// Looks for a better row order, from the present one, if it is due at state.step: where patterns
// are shared, when one is due (schedule.h), and before the first mask; of a fixed mask only then.
// Returns whether there is another order, which needs another mask.
//
// Cost: a search is 16 rounds (mask/row_order.h), the first one 64 and clusters.
bool update_row_order(const LayerInput& input, const Rng& rng, LayerState& state);

// Finds state.forward anew if it is due at state.step, or rows have moved.
void update_magnitude_mask(const LayerInput& input, bool moved, LayerState& state);

}  // namespace weft
