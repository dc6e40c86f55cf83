// What a block of a transformer computes between its products, for one token: layer norm, GELU, and
// attention to the tokens before it. In float, on the calling thread; no pointer may be null, and
// nothing is allocated.
#pragma once

#include <cstdint>

namespace weft {

// y = (x - mean) / sqrt(variance + 1e-5) * weight + bias, with the biased variance. All: [width].
void layer_norm(const float* x, const float* weight, const float* bias, int64_t width, float* y);

// x = x · Φ(x) = x · (1 + erf(x / √2)) / 2, in place. The error is below 2e-7 · max(1, |x|).
void gelu(float* x, int64_t count);

// One head of one token:
//
//   score[p] = scale · q · k[p]          p < positions, the token itself is the last
//   out      = Σ softmax(score)[p] · v[p]
struct HeadAttention {
  const float* q = nullptr;  // [dim]
  const float* k = nullptr;  // [positions, dim], rows `stride` apart
  const float* v = nullptr;  // as k
  int64_t positions = 0;     // at least 1
  int64_t dim = 0;
  int64_t stride = 0;
  float scale = 1;
  float* scores = nullptr;  // [positions], for its own use
  float* out = nullptr;     // [dim]
};
void attend(const HeadAttention& head);

}  // namespace weft
