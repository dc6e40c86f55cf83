// Floats that came from a narrower type, back into it, bit for bit.
#pragma once

#include <optional>
#include <span>

#include "weft/checkpoint/dtype.h"

namespace weft {

// dtype: F32, BF16 or F16. bytes: [weights.size()] elements. Returns the first weight that is not
// one of the type, if there is one; what is then in `bytes` has no meaning.
std::optional<int64_t> narrow_exactly(std::span<const float> weights, Dtype dtype,
                                      std::span<std::byte> bytes);

}  // namespace weft
