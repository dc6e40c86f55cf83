// Transposes row-major blocks, for loops that need the other layout.
#pragma once

#include <cstdint>

#include "weft/core/bf16.h"

namespace weft {

// to[c, r] = from[r, c] for r < rows, c < cols. Strides in elements.
template <typename From, typename To>
struct TransposeOf {
  const From* from = nullptr;
  int64_t from_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  To* to = nullptr;
  int64_t to_stride = 0;
  const float* const* from_rows = nullptr;  // of transpose_into, if rows are scattered: row r
};
using Transpose = TransposeOf<float, float>;
void transpose(const Transpose& t);
void transpose(const TransposeOf<Bf16, float>& t);  // and expands

// to[c, r] = from[r, c] + bias[r] + beta * to[c, r]; bias may be null, beta is 0 (to is not read)
// or 1. Sums are fp32; into bf16 they are rounded once, at the end.
void transpose_into(const Transpose& t, const float* bias, float beta);
void transpose_into(const TransposeOf<float, Bf16>& t, const float* bias, float beta);

}  // namespace weft
