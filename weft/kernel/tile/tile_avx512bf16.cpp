// Tiles on AVX512-BF16: vdpbf16ps multiplies pairs of bf16 and adds them to 16 sums. 16 rows of
// sums stay in registers; each pair of the right operand is loaded once for all of them.
#include <cstring>

#include "weft/kernel/tile/tile_ops.h"

#if defined(__x86_64__)

#if defined(__clang__)
#include <immintrin.h>
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16")
#endif

#include "weft/kernel/tile/tile_gather-inl.h"

namespace weft {
namespace {

// c [16, 16] (+)= a [16, 32 * steps] * b [steps, 16 pairs, 16, 2]
struct TileProduct {
  const Bf16* a;
  int64_t a_row;   // from one row to the next
  int64_t a_step;  // from one step to the next
  const Bf16* b;
  int64_t b_step;
  int64_t steps;
  float* c;
  int64_t c_stride;
  bool first;
};

void multiply_tiles_512(const TileProduct& p) {
  __m512 sums[16];
  for (int r = 0; r < 16; ++r) {
    sums[r] = p.first ? _mm512_setzero_ps() : _mm512_loadu_ps(p.c + r * p.c_stride);
  }
  for (int64_t step = 0; step < p.steps; ++step) {
    for (int pair = 0; pair < 16; ++pair) {
      const auto right = (__m512bh)_mm512_loadu_si512(p.b + step * p.b_step + pair * 32);
      const Bf16* left = p.a + step * p.a_step + 2 * pair;
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        int two;
        std::memcpy(&two, left + r * p.a_row, sizeof(two));
        sums[r] = _mm512_dpbf16_ps(sums[r], right, (__m512bh)_mm512_set1_epi32(two));
      }
    }
  }
  for (int r = 0; r < 16; ++r) _mm512_storeu_ps(p.c + r * p.c_stride, sums[r]);
}

void sparse_512(const SparseTileJob& job) {
  const int blocks = job.share / 16;
  if (job.steps == 0 && job.first) {
    for (int r = 0; r < job.share; ++r) std::memset(job.c + r * job.c_stride, 0, 64 * 4);
  }
  for (int64_t step = 0; step < job.steps; ++step) {
    auto& pairs = job.scratch->pairs[0];
    gather_pairs<2>(job.panel, job.offsets + 32 * step, 0, pairs);
    for (int block = 0; block < blocks; ++block) {
      for (int tile = 0; tile < 4; ++tile) {
        multiply_tiles_512(
            {job.values + (step * blocks + block) * 512, 32, 0, &pairs[tile][0][0][0], 0, 1,
             job.c + block * 16 * job.c_stride + 16 * tile, job.c_stride, job.first && step == 0});
      }
    }
  }
}

void dense_512(const DenseTileJob& job) {
  for (int block = 0; block < 2; ++block) {
    for (int tile = 0; tile < 2; ++tile) {
      multiply_tiles_512({job.a + block * 16 * job.a_stride, job.a_stride, 32, job.b + tile * 512,
                          1024, job.steps, job.c + block * 16 * 32 + 16 * tile, 32, true});
    }
  }
}

double busy_512(int64_t steps) {
  __m512 sums[16] = {};
  const auto left = (__m512bh)_mm512_set1_epi32(0), right = left;
  for (int64_t step = 0; step < steps; ++step) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      sums[r] = _mm512_dpbf16_ps(sums[r], left, right);
      __asm__ volatile("" : "+v"(sums[r]));  // or none of them would be computed
    }
  }
  return static_cast<double>(steps) * 16 * 2 * 32;
}

void nothing_512() {}

}  // namespace

const TileOps kAvx512Bf16Tiles = {nothing_512, nothing_512, sparse_512, dense_512, busy_512};

}  // namespace weft

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
