#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/train/decode/activations.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>
// After highway.h, for every target.
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>

#include "weft/train/decode/activations.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Vec = hn::VFromD<D>;

// Calls body(first, lanes) for the vectors of [0, count), the last of which may be short.
template <typename Body>
HWY_INLINE void ForVectors(int64_t count, Body body) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(D()));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) body(i, static_cast<size_t>(lanes));
  if (i < count) body(i, static_cast<size_t>(count - i));
}

// A vector of which only the first n lanes are in memory; the others are zero.
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

// erfc(|z|) = t (a1 + t (a2 + ...)) e^(-z²), t = 1 / (1 + p |z|): Abramowitz and Stegun, Handbook of
// Mathematical Functions, 7.1.26, to 1.5e-7. So x Φ(x) = max(x, 0) - |x| erfc(|x| / √2) / 2 loses
// nothing where x is negative. (The erff of the C library took 11 % of the time of a token at 256
// wide.)
void Gelu(float* HWY_RESTRICT x, int64_t count) {
  const D d;
  const auto next = [&](Vec poly, Vec t, float a) HWY_ATTR { return hn::MulAdd(poly, t, hn::Set(d, a)); };
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

HWY_INLINE float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t count) {
  const D d;
  Vec sum = hn::Zero(d);
  ForVectors(count, [&](int64_t i, size_t n) HWY_ATTR {
    sum = hn::MulAdd(LoadSome(a + i, n), LoadSome(b + i, n), sum);
  });
  return Sum(sum);
}

void Attend(const HeadAttention& head) {
  const D d;
  float* HWY_RESTRICT scores = head.scores;
  for (int64_t p = 0; p < head.positions; ++p) {
    scores[p] = head.scale * Dot(head.q, head.k + p * head.stride, head.dim);
  }
  const float most = *std::max_element(scores, scores + head.positions);
  Vec sum = hn::Zero(d);
  ForVectors(head.positions, [&](int64_t i, size_t n) HWY_ATTR {
    const Vec power = hn::Exp(d, hn::Sub(LoadSome(scores + i, n), hn::Set(d, most)));
    StoreSome(power, scores + i, n);
    sum = hn::Add(sum, hn::IfThenElseZero(hn::FirstN(d, n), power));
  });
  const float scale = 1 / Sum(sum);
  ForVectors(head.dim, [&](int64_t i, size_t n) HWY_ATTR {
    Vec mixed = hn::Zero(d);
    for (int64_t p = 0; p < head.positions; ++p) {
      mixed = hn::MulAdd(hn::Set(d, scores[p]), LoadSome(head.v + p * head.stride + i, n), mixed);
    }
    StoreSome(hn::Mul(mixed, hn::Set(d, scale)), head.out + i, n);
  });
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
