// Row-major blocks turned over, for what lies the other way round than the loop wants.
#pragma once

#include <cstdint>

#include "weft/core/bf16.h"

namespace weft {

// to[c, r] = from[r, c] for r < rows, c < cols. Strides in elements.
template <typename From, typename To>
struct TurnOf {
  const From* from = nullptr;
  int64_t from_stride = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  To* to = nullptr;
  int64_t to_stride = 0;
  const float* const* from_rows = nullptr;  // of transpose_into, if rows lie anywhere: row r
};
using Turn = TurnOf<float, float>;
void transpose(const Turn& turn);
void transpose(const TurnOf<Bf16, float>& turn);  // and expands

// to[c, r] = from[r, c] + bias[r] + beta * to[c, r]; bias may be null, beta is 0 (to is not read)
// or 1. Sums are fp32; into bf16 they are rounded once, at the end.
void transpose_into(const Turn& turn, const float* bias, float beta);
void transpose_into(const TurnOf<float, Bf16>& turn, const float* bias, float beta);

}  // namespace weft
