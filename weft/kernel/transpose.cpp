// Tiles of 8 x 8 (4 x 4 where vectors are shorter) in registers. The inner loop runs along the rows
// of `from`, so that only as many lines are open as a tile has rows: strides are often powers of
// two, and more lines would fall into the same set of the cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/transpose.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "weft/kernel/bf16-inl.h"
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

HWY_INLINE Vec Load(const float* from) { return hn::LoadU(D(), from); }
HWY_INLINE Vec Load(const Bf16* from) { return LoadBf16(D(), from); }
HWY_INLINE void Store(Vec v, float* to) { hn::StoreU(v, D(), to); }
HWY_INLINE void Store(Vec v, Bf16* to) { StoreBf16(D(), v, to); }

HWY_INLINE float One(float from) { return from; }
HWY_INLINE float One(Bf16 from) { return to_float(from); }
HWY_INLINE void StoreOne(float v, float& to) { to = v; }
HWY_INLINE void StoreOne(float v, Bf16& to) { to = to_bf16(v); }

template <bool kScattered, typename From, typename To>
HWY_INLINE const From* RowOf(const TurnOf<From, To>& t, int64_t row) {
  if constexpr (kScattered) {
    return t.from_rows[row];
  } else {
    return t.from + row * t.from_stride;
  }
}

template <bool kBias, bool kAdd, bool kScattered, typename From, typename To>
HWY_INLINE void TurnTile(const TurnOf<From, To>& t, int64_t row, int64_t col, const float* bias) {
  [[maybe_unused]] const D d;
  Vec rows[kTile];
  HWY_UNROLL(8)
  for (int r = 0; r < kTile; ++r) rows[r] = Load(RowOf<kScattered>(t, row + r) + col);
  TransposeRegisters(rows);
  HWY_UNROLL(8)
  for (int c = 0; c < kTile; ++c) {
    To* to = t.to + (col + c) * t.to_stride + row;
    Vec v = rows[c];
    if constexpr (kBias) v = hn::Add(v, hn::LoadU(d, bias + row));
    if constexpr (kAdd) v = hn::Add(v, Load(to));
    Store(v, to);
  }
}

template <bool kBias, bool kAdd, bool kScattered, typename From, typename To>
HWY_INLINE void TurnOne(const TurnOf<From, To>& t, int64_t row, int64_t col, const float* bias) {
  To& to = t.to[col * t.to_stride + row];
  float v = One(RowOf<kScattered>(t, row)[col]);
  if constexpr (kBias) v += bias[row];
  if constexpr (kAdd) v += One(to);
  StoreOne(v, to);
}

// kAlongFrom: whether the inner loop runs along the rows of `from`, or along those of `to`.
template <bool kBias, bool kAdd, bool kAlongFrom, bool kScattered, typename From, typename To>
HWY_NOINLINE void TurnAll(const TurnOf<From, To>& t, const float* bias) {
  const int64_t rows = t.rows / kTile * kTile, cols = t.cols / kTile * kTile;
  if constexpr (kAlongFrom) {
    for (int64_t r = 0; r < rows; r += kTile) {
      for (int64_t c = 0; c < cols; c += kTile) TurnTile<kBias, kAdd, kScattered>(t, r, c, bias);
    }
  } else {
    for (int64_t c = 0; c < cols; c += kTile) {
      for (int64_t r = 0; r < rows; r += kTile) TurnTile<kBias, kAdd, kScattered>(t, r, c, bias);
    }
  }
  for (int64_t r = 0; r < t.rows; ++r) {
    for (int64_t c = r < rows ? cols : 0; c < t.cols; ++c) {
      TurnOne<kBias, kAdd, kScattered>(t, r, c, bias);
    }
  }
}

void TurnPlain(const Turn& t) { TurnAll<false, false, true, false>(t, nullptr); }
void TurnExpanding(const TurnOf<Bf16, float>& t) { TurnAll<false, false, true, false>(t, nullptr); }

template <bool kBias, bool kAdd, typename To>
HWY_INLINE void TurnEither(const TurnOf<float, To>& t, const float* bias) {
  if (t.from_rows) return TurnAll<kBias, kAdd, false, true>(t, bias);
  TurnAll<kBias, kAdd, false, false>(t, bias);
}

template <typename To>
HWY_INLINE void TurnAdding(const TurnOf<float, To>& t, const float* bias, bool add) {
  if (bias) return add ? TurnEither<true, true>(t, bias) : TurnEither<true, false>(t, bias);
  return add ? TurnEither<false, true>(t, bias) : TurnEither<false, false>(t, bias);
}
void TurnInto(const Turn& t, const float* bias, bool add) { TurnAdding(t, bias, add); }
void TurnRounding(const TurnOf<float, Bf16>& t, const float* bias, bool add) {
  TurnAdding(t, bias, add);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(TurnPlain);
HWY_EXPORT(TurnExpanding);
HWY_EXPORT(TurnInto);
HWY_EXPORT(TurnRounding);

void transpose(const Turn& turn) { HWY_DYNAMIC_DISPATCH(TurnPlain)(turn); }
void transpose(const TurnOf<Bf16, float>& turn) { HWY_DYNAMIC_DISPATCH(TurnExpanding)(turn); }
void transpose_into(const Turn& turn, const float* bias, float beta) {
  HWY_DYNAMIC_DISPATCH(TurnInto)(turn, bias, beta != 0.0f);
}
void transpose_into(const TurnOf<float, Bf16>& turn, const float* bias, float beta) {
  HWY_DYNAMIC_DISPATCH(TurnRounding)(turn, bias, beta != 0.0f);
}

}  // namespace weft
#endif
