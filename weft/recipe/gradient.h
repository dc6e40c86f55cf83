// How the gradient of the weights is estimated.
//
//   exact           Gᵀ X
//   masked          Gᵀ X where the forward operand keeps a weight, 0 elsewhere
//   mvue            an unbiased N:M sample of Gᵀ along tokens, times X      (estimate/mvue.h)
//   mvue-two-draw   the same by the papers' two draws, 2:4 only
#pragma once

#include "weft/recipe/part.h"

namespace weft {

extern const GradientPart kExactPart, kMaskedPart, kMvuePart, kTwoDrawPart;

}  // namespace weft
