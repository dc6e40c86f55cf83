#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/pack/transpose_bf16.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "weft/pack/transpose_bf16.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
using D16 = hn::FixedTag<uint16_t, 8>;
using V16 = hn::VFromD<D16>;

// Interleaving rows r and r + 4 three times over is the transpose: each round moves one bit of the
// row into the column.
HWY_INLINE void InterleaveHalves(const V16 (&from)[8], V16 (&to)[8]) {
  const D16 d;
  HWY_UNROLL(4)
  for (int r = 0; r < 4; ++r) {
    to[2 * r] = hn::InterleaveLower(d, from[r], from[r + 4]);
    to[2 * r + 1] = hn::InterleaveUpper(d, from[r], from[r + 4]);
  }
}

HWY_INLINE void TransposeSquare(const Bf16* const (&rows)[8], int64_t col, Bf16* to,
                                int64_t stride) {
  const D16 d;
  V16 a[8], b[8];
  HWY_UNROLL(8)
  for (int r = 0; r < 8; ++r) {
    a[r] = hn::LoadU(d, reinterpret_cast<const uint16_t*>(rows[r] + col));
  }
  InterleaveHalves(a, b);
  InterleaveHalves(b, a);
  InterleaveHalves(a, b);
  HWY_UNROLL(8)
  for (int c = 0; c < 8; ++c) {
    hn::StoreU(b[c], d, reinterpret_cast<uint16_t*>(to + (col + c) * stride));
  }
}
#endif

void TransposeEight(const Bf16* const (&rows)[8], int64_t cols, Bf16* to, int64_t stride) {
  int64_t col = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; col + 8 <= cols; col += 8) TransposeSquare(rows, col, to, stride);
#endif
  for (; col < cols; ++col) {
    for (int r = 0; r < 8; ++r) to[col * stride + r] = rows[r][col];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(TransposeEight);

void transpose_eight(const Bf16* const (&rows)[8], int64_t cols, Bf16* to, int64_t stride) {
  HWY_DYNAMIC_DISPATCH(TransposeEight)(rows, cols, to, stride);
}

}  // namespace weft
#endif
