// Tiles in plain C++: what the instruction TDPBF16PS computes, one number after the other. Sums of
// the even and the odd numbers of all pairs are taken apart, then added; subnormals count as zero.
#include <cmath>
#include <cstring>
#include <limits>

#include "weft/kernel/tile/tile_ops.h"

namespace weft {
namespace {

float flushed(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value;
}

// c [16, 16] += a [16, 32] * b [16 pairs, 16, 2]
void multiply_tiles(const Bf16* a, int64_t a_stride, const Bf16* b, float* c, int64_t c_stride) {
  for (int r = 0; r < 16; ++r) {
    for (int col = 0; col < 16; ++col) {
      float even = 0.0f, odd = 0.0f;
      for (int pair = 0; pair < 16; ++pair) {
        const Bf16* left = a + r * a_stride + 2 * pair;
        const Bf16* right = b + (pair * 16 + col) * 2;
        even += flushed(to_float(left[0])) * flushed(to_float(right[0]));
        odd += flushed(to_float(left[1])) * flushed(to_float(right[1]));
      }
      float& sum = c[r * c_stride + col];
      sum = flushed(sum + flushed(even + odd));
    }
  }
}

void gather(const SparseTileJob& job, int64_t step, TileScratch& scratch) {
  const uint16_t* rows = job.offsets + 32 * step;
  for (int pair = 0; pair < 16; ++pair) {
    for (int c = 0; c < 64; ++c) {
      Bf16(&to)[2] = scratch.pairs[0][c / 16][pair][c % 16];
      to[0] = job.panel[int64_t{rows[2 * pair]} * 64 + panel_place(c)];
      to[1] = job.panel[int64_t{rows[2 * pair + 1]} * 64 + panel_place(c)];
    }
  }
}

void emulate_sparse(const SparseTileJob& job) {
  if (job.first) {
    for (int r = 0; r < job.share; ++r) std::memset(job.c + r * job.c_stride, 0, 64 * 4);
  }
  for (int64_t step = 0; step < job.steps; ++step) {
    gather(job, step, *job.scratch);
    for (int block = 0; block < job.share / 16; ++block) {
      const Bf16* a = job.values + (step * (job.share / 16) + block) * 512;
      for (int tile = 0; tile < 4; ++tile) {
        multiply_tiles(a, 32, &job.scratch->pairs[0][tile][0][0][0],
                       job.c + block * 16 * job.c_stride + tile * 16, job.c_stride);
      }
    }
  }
}

void emulate_dense(const DenseTileJob& job) {
  std::memset(job.c, 0, 32 * 32 * sizeof(float));
  for (int64_t step = 0; step < job.steps; ++step) {
    for (int block = 0; block < 2; ++block) {
      for (int tile = 0; tile < 2; ++tile) {
        multiply_tiles(job.a + block * 16 * job.a_stride + 32 * step, job.a_stride,
                       job.b + (step * 2 + tile) * 512, job.c + block * 16 * 32 + tile * 16, 32);
      }
    }
  }
}

double emulate_busy(int64_t steps) {
  static const Bf16 operand[512] = {};
  float sums[256] = {};
  for (int64_t step = 0; step < steps; ++step) multiply_tiles(operand, 32, operand, sums, 16);
  return static_cast<double>(steps) * 2 * 16 * 16 * 32;
}

void nothing() {}

}  // namespace

const TileOps kEmulatedTiles = {nothing, nothing, emulate_sparse, emulate_dense, emulate_busy};

}  // namespace weft
