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
#include "weft/recipe/part.h"

namespace weft {

extern const DecayPart kNoDecay, kGradientDecay, kDecoupledDecay;

// to += scale · weights where the mask is 0; to, weights: [mask.rows(), mask.cols()]. The two may
// be the same: decoupled decay is a negative scale.
template <typename T>
void add_where_pruned(const T* weights, const Mask& mask, T scale, T* to);

}  // namespace weft
