// A matrix under a mask: what it keeps, and zero elsewhere.
#pragma once

#include "weft/core/mask.h"

namespace weft {

// out = mask ∘ from; both [mask.rows(), mask.cols()], and may be the same.
template <typename T>
void masked_copy(const T* from, const Mask& mask, T* out);

}  // namespace weft
