// The backward part of Bi-Mask (Zhang 2023): the forward operand, thinned out until it is N:M
// along outputs too, in an order of outputs that loses little (permutation.h).
//
//   F      the mask of the forward operand, N:M along inputs
//   π      a permutation of the outputs
//   R      for each input, and each group of permuted outputs: the `keep` largest of |F ∘ W|
//   B      F ∘ R                 a subset of F, N:M along permuted outputs
//   dX     G (B ∘ W̃)             biased: G (F ∘ W̃) would be exact
//
// dW does not know B. The permutation only says which outputs form a group: with explicit indices
// the product multiplies B as stored, so neither G nor W is ever permuted. Of equal weights the
// first in permuted order stays. In a convolution a group is of output channels at one input and
// tap.
#pragma once

#include <span>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"
#include "weft/recipe/part.h"

namespace weft {

extern const BackwardPart kBiMaskPart;

// values: [outs, cols], the forward operand; permutation: [outs], output at each place.
Mask backward_mask(const float* values, const Mask& forward, const WeightShape& shape,
                   const Pattern& pattern, std::span<const int64_t> permutation);

}  // namespace weft
