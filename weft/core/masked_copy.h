// A matrix under a mask: what it keeps, or what it drops, and zero elsewhere.
#pragma once

#include "weft/core/bf16.h"
#include "weft/core/mask.h"

namespace weft {

// out = mask ∘ from; both [mask.rows(), mask.cols()], and may be the same.
template <typename T>
void masked_copy(const T* from, const Mask& mask, T* out);
// The same, rounded to the nearest bf16.
void masked_copy(const float* from, const Mask& mask, Bf16* out);

// to += scale · from where the mask is 0; both [mask.rows(), mask.cols()], and may be the same.
template <typename T>
void add_where_pruned(const T* from, const Mask& mask, T scale, T* to);

}  // namespace weft
