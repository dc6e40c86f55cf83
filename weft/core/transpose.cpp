// Tiles of 8 x 8 (4 x 4 where vectors are shorter, and of the last rows) in registers. The inner
// loop runs along the rows of `from`, so that only as many lines are open as a tile has rows:
// strides are often powers of two, and more lines would fall into the same set of the cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/core/transpose.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "weft/core/bf16-inl.h"
#include "weft/core/transpose.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Eight = hn::CappedTag<float, 8>;
using Four = hn::CappedTag<float, 4>;
template <class D>
constexpr int kTile = static_cast<int>(hn::MaxLanes(D()));

// rows[r] becomes column r of what they were.
template <class D, class Vec = hn::VFromD<D>>
HWY_INLINE void TransposeRegisters([[maybe_unused]] D d, [[maybe_unused]] Vec (&rows)[kTile<D>]) {
#if HWY_TARGET != HWY_SCALAR
  const hn::RepartitionToWide<D> d64;
  const auto wide = [&](Vec v) { return hn::BitCast(d64, v); };
  Vec pairs[kTile<D>];
  HWY_UNROLL(8)
  for (int r = 0; r < kTile<D>; r += 2) {
    pairs[r] = hn::InterleaveLower(d, rows[r], rows[r + 1]);
    pairs[r + 1] = hn::InterleaveUpper(d, rows[r], rows[r + 1]);
  }
  HWY_UNROLL(8)
  for (int r = 0; r < kTile<D>; r += 4) {
    rows[r] = hn::BitCast(d, hn::InterleaveLower(d64, wide(pairs[r]), wide(pairs[r + 2])));
    rows[r + 1] = hn::BitCast(d, hn::InterleaveUpper(d64, wide(pairs[r]), wide(pairs[r + 2])));
    rows[r + 2] = hn::BitCast(d, hn::InterleaveLower(d64, wide(pairs[r + 1]), wide(pairs[r + 3])));
    rows[r + 3] = hn::BitCast(d, hn::InterleaveUpper(d64, wide(pairs[r + 1]), wide(pairs[r + 3])));
  }
  if constexpr (kTile<D> == 8) {
    HWY_UNROLL(8)
    for (int r = 0; r < 4; ++r) {
      const Vec low = rows[r], high = rows[r + 4];
      rows[r] = hn::ConcatLowerLower(d, high, low);
      rows[r + 4] = hn::ConcatUpperUpper(d, high, low);
    }
  }
#endif
}

template <class D>
HWY_INLINE hn::VFromD<D> LoadAs(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::VFromD<D> LoadAs(D d, const Bf16* from) {
  return LoadBf16(d, from);
}
template <class D>
HWY_INLINE void StoreAs(D d, hn::VFromD<D> v, float* to) {
  hn::StoreU(v, d, to);
}
template <class D>
HWY_INLINE void StoreAs(D d, hn::VFromD<D> v, Bf16* to) {
  StoreBf16(d, v, to);
}

HWY_INLINE float One(float from) { return from; }
HWY_INLINE float One(Bf16 from) { return to_float(from); }
HWY_INLINE void StoreOne(float v, float& to) { to = v; }
HWY_INLINE void StoreOne(float v, Bf16& to) { to = to_bf16(v); }

template <bool kScattered, typename From, typename To>
HWY_INLINE const From* RowOf(const TransposeOf<From, To>& t, int64_t row) {
  if constexpr (kScattered) {
    return t.from_rows[row];
  } else {
    return t.from + row * t.from_stride;
  }
}

template <bool kBias, bool kAdd, bool kScattered, class D, typename From, typename To>
HWY_INLINE void TransposeTile(D d, const TransposeOf<From, To>& t, int64_t row, int64_t col,
                              const float* bias) {
  hn::VFromD<D> rows[kTile<D>];
  HWY_UNROLL(8)
  for (int r = 0; r < kTile<D>; ++r) rows[r] = LoadAs(d, RowOf<kScattered>(t, row + r) + col);
  TransposeRegisters(d, rows);
  HWY_UNROLL(8)
  for (int c = 0; c < kTile<D>; ++c) {
    To* to = t.to + (col + c) * t.to_stride + row;
    auto v = rows[c];
    if constexpr (kBias) v = hn::Add(v, hn::LoadU(d, bias + row));
    if constexpr (kAdd) v = hn::Add(v, LoadAs(d, to));
    StoreAs(d, v, to);
  }
}

template <bool kBias, bool kAdd, bool kScattered, typename From, typename To>
HWY_INLINE void TransposeOne(const TransposeOf<From, To>& t, int64_t row, int64_t col,
                             const float* bias) {
  To& to = t.to[col * t.to_stride + row];
  float v = One(RowOf<kScattered>(t, row)[col]);
  if constexpr (kBias) v += bias[row];
  if constexpr (kAdd) v += One(to);
  StoreOne(v, to);
}

// Rows [first, last), whole tiles of them; kAlongFrom: whether the inner loop runs along the rows
// of `from`, or along those of `to`.
template <bool kBias, bool kAdd, bool kAlongFrom, bool kScattered, class D, typename From,
          typename To>
HWY_INLINE void TransposeRows(D d, const TransposeOf<From, To>& t, int64_t first, int64_t last,
                              const float* bias) {
  constexpr int64_t kStep = kTile<D>;
  const int64_t cols = t.cols / kStep * kStep;
  if constexpr (kAlongFrom) {
    for (int64_t r = first; r < last; r += kStep) {
      for (int64_t c = 0; c < cols; c += kStep)
        TransposeTile<kBias, kAdd, kScattered>(d, t, r, c, bias);
    }
  } else {
    for (int64_t c = 0; c < cols; c += kStep) {
      for (int64_t r = first; r < last; r += kStep) {
        TransposeTile<kBias, kAdd, kScattered>(d, t, r, c, bias);
      }
    }
  }
  for (int64_t r = first; r < last; ++r) {
    for (int64_t c = cols; c < t.cols; ++c) TransposeOne<kBias, kAdd, kScattered>(t, r, c, bias);
  }
}

template <bool kBias, bool kAdd, bool kAlongFrom, bool kScattered, typename From, typename To>
HWY_NOINLINE void TransposeAll(const TransposeOf<From, To>& t, const float* bias) {
  const int64_t eights = t.rows / kTile<Eight> * kTile<Eight>;
  const int64_t fours = t.rows / kTile<Four> * kTile<Four>;
  TransposeRows<kBias, kAdd, kAlongFrom, kScattered>(Eight(), t, 0, eights, bias);
  TransposeRows<kBias, kAdd, kAlongFrom, kScattered>(Four(), t, eights, fours, bias);
  for (int64_t r = fours; r < t.rows; ++r) {
    for (int64_t c = 0; c < t.cols; ++c) TransposeOne<kBias, kAdd, kScattered>(t, r, c, bias);
  }
}

void TransposePlain(const Transpose& t) { TransposeAll<false, false, true, false>(t, nullptr); }
void TransposeExpanding(const TransposeOf<Bf16, float>& t) {
  TransposeAll<false, false, true, false>(t, nullptr);
}

template <bool kBias, bool kAdd, typename To>
HWY_INLINE void TransposeEither(const TransposeOf<float, To>& t, const float* bias) {
  if (t.from_rows) return TransposeAll<kBias, kAdd, false, true>(t, bias);
  TransposeAll<kBias, kAdd, false, false>(t, bias);
}

template <typename To>
HWY_INLINE void TransposeAdding(const TransposeOf<float, To>& t, const float* bias, bool add) {
  if (bias)
    return add ? TransposeEither<true, true>(t, bias) : TransposeEither<true, false>(t, bias);
  return add ? TransposeEither<false, true>(t, bias) : TransposeEither<false, false>(t, bias);
}
void TransposeInto(const Transpose& t, const float* bias, bool add) {
  TransposeAdding(t, bias, add);
}
void TransposeRounding(const TransposeOf<float, Bf16>& t, const float* bias, bool add) {
  TransposeAdding(t, bias, add);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(TransposePlain);
HWY_EXPORT(TransposeExpanding);
HWY_EXPORT(TransposeInto);
HWY_EXPORT(TransposeRounding);

void transpose(const Transpose& t) { HWY_DYNAMIC_DISPATCH(TransposePlain)(t); }
void transpose(const TransposeOf<Bf16, float>& t) { HWY_DYNAMIC_DISPATCH(TransposeExpanding)(t); }
void transpose_into(const Transpose& t, const float* bias, float beta) {
  HWY_DYNAMIC_DISPATCH(TransposeInto)(t, bias, beta != 0.0f);
}
void transpose_into(const TransposeOf<float, Bf16>& t, const float* bias, float beta) {
  HWY_DYNAMIC_DISPATCH(TransposeRounding)(t, bias, beta != 0.0f);
}

}  // namespace weft
#endif
