// The forward parts whose mask is chosen by magnitude: W̃ = m ∘ W.
//
//   top-n         m keeps the `keep` largest |w| of every group (of the sums of a cell)
//   transposable  m keeps `keep` per group along inputs and along outputs, with the largest Σ m |w|
//                 of every tile; or what another solver finds, perhaps fewer (mask/solver.h)
//
// Found every mask_interval (schedule.h) steps. If that is 0, once: of the weights with which
// sparse training begins, and within those that are not zero then (mask/within.h). Zeros stay zero,
// and weights that obey the pattern already are all kept.
//
// With a row order (recipe part order_every) rows share a pattern, and follow each other along
// outputs, by their places in that order; masks are stored unpermuted.
//
// Of equal weights the lower index stays. Straight through: dW := dW̃, pruned weights included, so
// that they can come back (with a fixed mask the gradient is masked instead).
#pragma once

#include "weft/core/rng.h"
#include "weft/recipe/layer_state.h"
#include "weft/recipe/part.h"

namespace weft {

extern const ForwardPart kTopNPart, kTransposablePart;

// Whether a training pass at state.step needs a search for a row order: where patterns are shared,
// before the first mask, and then as often as the schedule says; of a fixed mask only once.
bool is_order_due(const LayerInput& input, const LayerState& state);
// Looks for a better row order, from the present one. Returns whether there is another order, which
// needs another mask.
//
// Cost: a search is 16 rounds (mask/row_order.h), the first one 64 and clusters.
bool update_row_order(const LayerInput& input, const Rng& rng, LayerState& state);

// Whether the mask is a function of the weights as they are: found again at every step, or because
// the weights have been replaced.
bool follows_weights(const LayerInput& input);
// Whether a training pass at state.step needs a new mask, of those that are found every few steps.
bool is_mask_due(const LayerInput& input, const LayerState& state);

// state.forward of the weights as they are.
void find_magnitude_mask(const LayerInput& input, LayerState& state);

}  // namespace weft
