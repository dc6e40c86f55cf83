#include "weft/layer/activations.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "weft/core/ceil_div.h"
#include "weft/core/parallel.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/pack/pack.h"

namespace weft {

AlignedBuffer<float> rounded_to_fp8(const float* x, int64_t size, Fp8 format) {
  AlignedBuffer<float> rounded(static_cast<size_t>(size));
  round_to_fp8({x, static_cast<size_t>(size)}, format, {rounded.data(), rounded.size()});
  return rounded;
}

AlignedBuffer<Bf16> rounded_to_fp8(const Bf16* x, int64_t size, Fp8 format) {
  AlignedBuffer<float> floats(static_cast<size_t>(size));
  expand(x, size, floats.data());
  return round_like(x, rounded_to_fp8(floats.data(), size, format));
}

const float* as_floats(const float* g, int64_t) { return g; }
const float* as_floats(const Bf16* g, int64_t size) {
  float* wide = fp32_copy(CopyOf::kFirst, size);
  expand(g, size, wide);
  return wide;
}

namespace {

// to[i] = g[i] * to[i] where to[i] is not 0. Without a branch, because which entries are kept is
// random; a comparison of floats would keep g++ from using vectors.
void scale_kept(const float* g, float* to, int64_t size) {
  for (int64_t i = 0; i < size; ++i) {
    const uint32_t kept = -static_cast<uint32_t>(std::bit_cast<uint32_t>(to[i]) != 0);
    to[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(g[i] * to[i]) & kept);
  }
}

}  // namespace

AlignedBuffer<float> sampled(const float* g, AlignedBuffer<float> scales,
                             const std::optional<Fp8>& rounding) {
  constexpr int64_t kAtOnce = 1 << 15;
  const std::span<float> all(scales.data(), scales.size());
  const auto size = static_cast<int64_t>(all.size());
  parallel_for(ceil_div(size, kAtOnce), [&](int64_t part) {
    const int64_t first = part * kAtOnce;
    scale_kept(g + first, all.data() + first, std::min(kAtOnce, size - first));
  });
  if (rounding) round_to_fp8(all, *rounding, all);
  return scales;
}

void round_like(const float*, std::span<PackedMatrix>) {}
void round_like(const Bf16*, std::span<PackedMatrix> packed) { round_packed_to_bf16(packed); }
AlignedBuffer<float> round_like(const float*, AlignedBuffer<float> sample) { return sample; }
AlignedBuffer<Bf16> round_like(const Bf16*, const AlignedBuffer<float>& sample) {
  AlignedBuffer<Bf16> rounded(sample.size());
  round_to_bf16(sample.data(), static_cast<int64_t>(sample.size()), rounded.data());
  return rounded;
}

namespace {

double wide(double value) { return value; }
double wide(float value) { return value; }
double wide(Bf16 value) { return to_float(value); }

}  // namespace

template <typename T>
double cosine(const T* a, const T* b, int64_t size) {
  double product = 0.0, of_a = 0.0, of_b = 0.0;
  for (int64_t i = 0; i < size; ++i) {
    const double x = wide(a[i]);
    const double y = wide(b[i]);
    product += x * y;
    of_a += x * x;
    of_b += y * y;
  }
  const double norms = std::sqrt(of_a) * std::sqrt(of_b);
  return norms > 0.0 ? product / norms : 1.0;
}
template double cosine(const double*, const double*, int64_t);
template double cosine(const float*, const float*, int64_t);
template double cosine(const Bf16*, const Bf16*, int64_t);

}  // namespace weft
