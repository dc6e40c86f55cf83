// The decay of pruned weights (SR-STE; Zhou 2021): what a mask drops is pulled to zero, so that it
// does not flip back at every step.
//
//   in the gradient   dW += λ (1 − m) ∘ W        through momentum and Adam's moments, as the papers
//   decoupled         W  −= lr · λ (1 − m) ∘ W   beside the optimiser
//   auto              in the gradient, with a λ that short trials find (lambda_search.h)
//
// Once per optimiser step and after clipping, whatever the number of micro-batches, replicas, or
// uses of the layer. (The reference code adds it in every backward pass, so that its λ grows with
// all of them.) Kept weights are not touched.
#pragma once

#include "weft/recipe/part.h"

namespace weft {

extern const DecayPart kNoDecay, kGradientDecay, kDecoupledDecay, kAutoDecay;

}  // namespace weft
