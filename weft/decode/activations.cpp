#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/decode/activations.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
// After highway.h, for every target.
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>

#include "weft/decode/activations.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Vec = hn::VFromD<D>;

// Calls body(first, lanes) for the vectors of [0, count); the last one may be short.
template <typename Body>
HWY_INLINE void ForVectors(int64_t count, Body body) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, static_cast<size_t>(lanes));
  if (i < count) body(i, static_cast<size_t>(count - i));
}

// A vector whose first n lanes are in memory; the others are zero.
HWY_INLINE Vec LoadSome(const float* HWY_RESTRICT from, size_t n) {
  const D d;
  if (n == hn::Lanes(d)) return hn::LoadU(d, from);
  HWY_ALIGN float lanes[hn::MaxLanes(d)] = {};
  std::copy_n(from, n, lanes);
  return hn::Load(d, lanes);
}

HWY_INLINE void StoreSome(Vec v, float* HWY_RESTRICT to, size_t n) {
  const D d;
  if (n == hn::Lanes(d)) return hn::StoreU(v, d, to);
  HWY_ALIGN float lanes[hn::MaxLanes(d)];
  hn::Store(v, d, lanes);
  std::copy_n(lanes, n, to);
}

HWY_INLINE float Sum(Vec v) { return hn::GetLane(hn::SumOfLanes(D(), v)); }

void LayerNorm(const float* HWY_RESTRICT x, const float* HWY_RESTRICT weight,
               const float* HWY_RESTRICT bias, int64_t width, float* HWY_RESTRICT y) {
  const D d;
  const float count = static_cast<float>(width);
  Vec sum = hn::Zero(d);
  ForVectors(width, [&](int64_t i, size_t n) HWY_ATTR { sum = hn::Add(sum, LoadSome(x + i, n)); });
  const Vec mean = hn::Set(d, Sum(sum) / count);
  Vec squares = hn::Zero(d);
  ForVectors(width, [&](int64_t i, size_t n) HWY_ATTR {
    const Vec centred = hn::IfThenElseZero(hn::FirstN(d, n), hn::Sub(LoadSome(x + i, n), mean));
    squares = hn::MulAdd(centred, centred, squares);
  });
  const Vec scale = hn::Set(d, 1 / std::sqrt(Sum(squares) / count + 1e-5f));
  ForVectors(width, [&](int64_t i, size_t n) HWY_ATTR {
    const Vec normed = hn::Mul(hn::Sub(LoadSome(x + i, n), mean), scale);
    StoreSome(hn::MulAdd(normed, LoadSome(weight + i, n), LoadSome(bias + i, n)), y + i, n);
  });
}

// erfc(|z|) = t (a1 + t (a2 + ...)) e^(-z²), t = 1 / (1 + p |z|): Abramowitz and Stegun, Handbook
// of Mathematical Functions, 7.1.26, to 1.5e-7. So x Φ(x) = max(x, 0) - |x| erfc(|x| / √2) / 2
// loses nothing where x is negative. 1024 of them take 1.4 us on a Zen 3 (AVX2); with the C
// library's erff they take 9, where the products of a block 256 wide take about 60.
void Gelu(float* HWY_RESTRICT x, int64_t count) {
  const D d;
  const auto next = [&](Vec poly, Vec t, float a)
                        HWY_ATTR { return hn::MulAdd(poly, t, hn::Set(d, a)); };
  ForVectors(count, [&](int64_t i, size_t n) HWY_ATTR {
    const Vec v = LoadSome(x + i, n);
    const Vec magnitude = hn::Abs(v);
    const Vec z = hn::Mul(magnitude, hn::Set(d, 0.70710678f));
    const Vec t =
        hn::Div(hn::Set(d, 1.0f), hn::MulAdd(z, hn::Set(d, 0.3275911f), hn::Set(d, 1.0f)));
    Vec poly = hn::Set(d, 1.061405429f);
    poly = next(poly, t, -1.453152027f);
    poly = next(poly, t, 1.421413741f);
    poly = next(poly, t, -0.284496736f);
    poly = next(poly, t, 0.254829592f);
    const Vec tail = hn::Mul(hn::Mul(poly, t), hn::Exp(d, hn::Neg(hn::Mul(z, z))));
    const Vec half = hn::Mul(magnitude, hn::Set(d, 0.5f));
    StoreSome(hn::NegMulAdd(half, tail, hn::Max(v, hn::Zero(d))), x + i, n);
  });
}

// The scores of kPositions positions from p on, with as many sums in flight.
template <int kPositions>
HWY_INLINE void Score(const HeadAttention& head, int64_t p) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT q = head.q;
  const float* HWY_RESTRICT k = head.k + p * head.stride;
  Vec sums[kPositions];
  for (int j = 0; j < kPositions; ++j) sums[j] = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= head.dim; i += lanes) {
    const Vec query = hn::LoadU(d, q + i);
    HWY_UNROLL(4)
    for (int j = 0; j < kPositions; ++j) {
      sums[j] = hn::MulAdd(query, hn::LoadU(d, k + j * head.stride + i), sums[j]);
    }
  }
  for (int j = 0; j < kPositions; ++j) {
    float sum = Sum(sums[j]);
    for (int64_t rest = i; rest < head.dim; ++rest) sum += q[rest] * k[j * head.stride + rest];
    head.scores[p + j] = head.scale * sum;
  }
}

// kVectors vectors of the mixture of values, from i on; `scale` is 1 / the sum of all scores.
template <int kVectors>
HWY_INLINE void Mix(const HeadAttention& head, int64_t i, float scale) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* HWY_RESTRICT v = head.v + i;
  Vec sums[kVectors];
  for (int j = 0; j < kVectors; ++j) sums[j] = hn::Zero(d);
  for (int64_t p = 0; p < head.positions; ++p, v += head.stride) {
    const Vec score = hn::Set(d, head.scores[p]);
    HWY_UNROLL(8)
    for (int j = 0; j < kVectors; ++j) {
      sums[j] = hn::MulAdd(score, hn::LoadU(d, v + j * lanes), sums[j]);
    }
  }
  for (int j = 0; j < kVectors; ++j) {
    hn::StoreU(hn::Mul(sums[j], hn::Set(d, scale)), d, head.out + i + j * lanes);
  }
}

HWY_INLINE void MixOne(const HeadAttention& head, int64_t i, float scale) {
  float sum = 0;
  for (int64_t p = 0; p < head.positions; ++p) sum += head.scores[p] * head.v[p * head.stride + i];
  head.out[i] = sum * scale;
}

void Attend(const HeadAttention& head) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  float* HWY_RESTRICT scores = head.scores;
  int64_t p = 0;
  for (; p + 4 <= head.positions; p += 4) Score<4>(head, p);
  for (; p < head.positions; ++p) Score<1>(head, p);

  const float most = *std::max_element(scores, scores + head.positions);
  Vec sums = hn::Zero(d);
  ForVectors(head.positions, [&](int64_t i, size_t n) HWY_ATTR {
    const Vec power = hn::Exp(d, hn::Sub(LoadSome(scores + i, n), hn::Set(d, most)));
    StoreSome(power, scores + i, n);
    sums = hn::Add(sums, hn::IfThenElseZero(hn::FirstN(d, n), power));
  });
  const float scale = 1 / Sum(sums);

  int64_t i = 0;
  for (; i + 8 * lanes <= head.dim; i += 8 * lanes) Mix<8>(head, i, scale);
  for (; i + lanes <= head.dim; i += lanes) Mix<1>(head, i, scale);
  for (; i < head.dim; ++i) MixOne(head, i, scale);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(LayerNorm);
HWY_EXPORT(Gelu);
HWY_EXPORT(Attend);

void layer_norm(const float* x, const float* weight, const float* bias, int64_t width, float* y) {
  HWY_DYNAMIC_DISPATCH(LayerNorm)(x, weight, bias, width, y);
}

void gelu(float* x, int64_t count) { HWY_DYNAMIC_DISPATCH(Gelu)(x, count); }

void attend(const HeadAttention& head) { HWY_DYNAMIC_DISPATCH(Attend)(head); }

}  // namespace weft
#endif
