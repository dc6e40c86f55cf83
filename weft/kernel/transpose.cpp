// Tiles of 8 x 8 (4 x 4 where vectors are shorter) in registers. The inner loop runs along the rows
// of `from`, so that only as many lines are open as a tile has rows: strides are often powers of
// two, and more lines would fall into the same set of the cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/transpose.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "weft/kernel/transpose.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 8>;
using Vec = hn::VFromD<D>;
constexpr int kTile = static_cast<int>(hn::MaxLanes(D()));

// rows[r] becomes column r of what they were.
HWY_INLINE void TransposeRegisters(Vec (&rows)[kTile]) {
#if HWY_TARGET == HWY_SCALAR
  (void)rows;
#else
  const D d;
  const hn::RepartitionToWide<D> d64;
  const auto wide = [&](Vec v) { return hn::BitCast(d64, v); };
  Vec pairs[kTile];
  HWY_UNROLL(8)
  for (int r = 0; r < kTile; r += 2) {
    pairs[r] = hn::InterleaveLower(d, rows[r], rows[r + 1]);
    pairs[r + 1] = hn::InterleaveUpper(d, rows[r], rows[r + 1]);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kTile; r += 4) {
    rows[r] = hn::BitCast(d, hn::InterleaveLower(d64, wide(pairs[r]), wide(pairs[r + 2])));
    rows[r + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, wide(pairs[r]), wide(pairs[r + 2])));
    rows[r + 2] = hn::BitCast(d, hn::InterleaveLower(d64, wide(pairs[r + 1]), wide(pairs[r + 3])));
    rows[r + 3] = hn::BitCast(d, hn::InterleaveUpper(d64, wide(pairs[r + 1]), wide(pairs[r + 3])));
  }
  if constexpr (kTile == 8) {
    HWY_UNROLL(8)
    for (int r = 0; r < 4; ++r) {
      const Vec low = rows[r], high = rows[r + 4];
      rows[r] = hn::ConcatLowerLower(d, high, low);
      rows[r + 4] = hn::ConcatUpperUpper(d, high, low);
    }
  }
#endif
}

template <bool kBias, bool kAdd>
HWY_INLINE void TurnTile(const Turn& t, int64_t row, int64_t col, const float* bias) {
  const D d;
  Vec rows[kTile];
  HWY_UNROLL(8)
  for (int r = 0; r < kTile; ++r) rows[r] = hn::LoadU(d, t.from + (row + r) * t.from_stride + col);
  TransposeRegisters(rows);
  HWY_UNROLL(8)
  for (int c = 0; c < kTile; ++c) {
    float* to = t.to + (col + c) * t.to_stride + row;
    Vec v = rows[c];
    if constexpr (kBias) v = hn::Add(v, hn::LoadU(d, bias + row));
    if constexpr (kAdd) v = hn::Add(v, hn::LoadU(d, to));
    hn::StoreU(v, d, to);
  }
}

template <bool kBias, bool kAdd>
HWY_INLINE void TurnOne(const Turn& t, int64_t row, int64_t col, const float* bias) {
  float& to = t.to[col * t.to_stride + row];
  float v = t.from[row * t.from_stride + col];
  if constexpr (kBias) v += bias[row];
  if constexpr (kAdd) v += to;
  to = v;
}

// kAlongFrom: whether the inner loop runs along the rows of `from`, or along those of `to`.
template <bool kBias, bool kAdd, bool kAlongFrom>
HWY_NOINLINE void TurnAll(const Turn& t, const float* bias) {
  const int64_t rows = t.rows / kTile * kTile, cols = t.cols / kTile * kTile;
  if constexpr (kAlongFrom) {
    for (int64_t r = 0; r < rows; r += kTile) {
      for (int64_t c = 0; c < cols; c += kTile) TurnTile<kBias, kAdd>(t, r, c, bias);
    }
  } else {
    for (int64_t c = 0; c < cols; c += kTile) {
      for (int64_t r = 0; r < rows; r += kTile) TurnTile<kBias, kAdd>(t, r, c, bias);
    }
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    for (int64_t c = r < rows ? cols : 0; c < t.cols; ++c) TurnOne<kBias, kAdd>(t, r, c, bias);
  }
}

void TurnPlain(const Turn& t) { TurnAll<false, false, true>(t, nullptr); }

void TurnInto(const Turn& t, const float* bias, bool add) {
  if (bias) return add ? TurnAll<true, true, false>(t, bias) : TurnAll<true, false, false>(t, bias);
  return add ? TurnAll<false, true, false>(t, bias) : TurnAll<false, false, false>(t, bias);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(TurnPlain);
HWY_EXPORT(TurnInto);

void transpose(const Turn& turn) { HWY_DYNAMIC_DISPATCH(TurnPlain)(turn); }
void transpose_into(const Turn& turn, const float* bias, float beta) {
  HWY_DYNAMIC_DISPATCH(TurnInto)(turn, bias, beta != 0.0f);
}

}  // namespace weft
#endif
