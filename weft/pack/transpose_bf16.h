// Transposes eight rows of bf16 at arbitrary addresses, for making tiles.
#pragma once

#include <cstdint>

#include "weft/core/bf16.h"

namespace weft {

// to[c * stride + r] = rows[r][c] for r < 8, c < cols.
void transpose_eight(const Bf16* const (&rows)[8], int64_t cols, Bf16* to, int64_t stride);

}  // namespace weft
