// The decay of pruned weights (SR-STE; Zhou 2021): what a mask drops is pulled to zero, so that it
// does not flip back at every step.
//
//   in the gradient   dW += λ (1 − m) ∘ W        through momentum and Adam's moments, as the papers
//   decoupled         W  −= lr · λ (1 − m) ∘ W   beside the optimiser
//
// Once per optimiser step and after clipping, whatever the number of micro-batches, replicas, or
// uses of the layer. (The reference code adds it in every backward pass, so that its λ grows with
// all of them.) Kept weights are not touched.
#pragma once

#include "weft/core/mask.h"

namespace weft {

// to += scale · weights where the mask is 0; to, weights: [mask.rows(), mask.cols()]. The two may
// be the same: decoupled decay is a negative scale.
void add_where_pruned(const float* weights, const Mask& mask, float scale, float* to);

}  // namespace weft
