// A matrix under a mask: what it keeps, and zero elsewhere.
#pragma once

#include "weft/core/bf16.h"
#include "weft/core/mask.h"

namespace weft {

// out = mask ∘ from; both [mask.rows(), mask.cols()], and may be the same.
template <typename T>
void masked_copy(const T* from, const Mask& mask, T* out);
// The same, rounded to the nearest bf16.
void masked_copy(const float* from, const Mask& mask, Bf16* out);

}  // namespace weft
