// Row-major blocks turned over, for what lies the other way round than the loop wants.
#pragma once

#include <cstdint>

namespace weft {

// to[c, r] = from[r, c] for r < rows, c < cols. Strides in elements.
struct Turn {
  const float* from = nullptr;
  int64_t from_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
};
void transpose(const Turn& turn);

// to[c, r] = from[r, c] + bias[r] + beta * to[c, r]; bias may be null, beta is 0 (to is not read)
// or 1.
void transpose_into(const Turn& turn, const float* bias, float beta);

}  // namespace weft
