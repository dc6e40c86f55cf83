// Tiles on Intel's AMX. Eight tiles of 1 KB: four sums, and what is multiplied.
//
// A step of the sparse product gathers 32 rows of the panel into pairs and multiplies them with a
// tile of values: 16 cycles for every 16 x 16 sums. Gathering stores as many lines as the unit
// loads, so it is done a step ahead, into the other part of the scratch: by the time a tile is
// loaded its lines have left the store buffer. With 32 sharing rows a gathered tile is used twice,
// and there are not enough tiles for 64 columns: they are done in two halves.
#include "weft/kernel/tile/tile_ops.h"

#if defined(__x86_64__)

#if defined(__clang__)
#include <immintrin.h>
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,amx-tile,amx-bf16")
#endif

#include "weft/kernel/tile/tile_gather-inl.h"

namespace weft {
namespace {

// All tiles are whole: 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

void begin_amx() {
  static const TileConfig config;
  _tile_loadconfig(&config);
}

void end_amx() { _tile_release(); }

void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Sums 0 ... 3 are columns of 16 rows.
void sparse_16(const SparseTileJob& job) {
  const auto stride = static_cast<size_t>(job.c_stride) * sizeof(float);
  if (job.first) {
    zero_sums();
  } else {
    _tile_loadd(0, job.c, stride);
    _tile_loadd(1, job.c + 16, stride);
    _tile_loadd(2, job.c + 32, stride);
    _tile_loadd(3, job.c + 48, stride);
  }
  if (job.steps > 0) gather_pairs<2>(job.panel, job.offsets, 0, job.scratch->pairs[0]);
  for (int64_t step = 0; step < job.steps; ++step) {
    if (step + 1 < job.steps) {
      gather_pairs<2>(job.panel, job.offsets + 32 * (step + 1), 0,
                      job.scratch->pairs[(step + 1) % 2]);
    }
    auto& pairs = job.scratch->pairs[step % 2];
    _tile_loadd(4, job.values + step * 512, 64);
    _tile_loadd(5, pairs[0], 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, pairs[1], 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, pairs[2], 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, pairs[3], 64);
    _tile_dpbf16ps(3, 4, 5);
  }
  _tile_stored(0, job.c, stride);
  _tile_stored(1, job.c + 16, stride);
  _tile_stored(2, job.c + 32, stride);
  _tile_stored(3, job.c + 48, stride);
}

// Sums 0, 1 are columns of the first 16 rows, 2, 3 of the others; half: 32 columns.
template <int half>
void sparse_32(const SparseTileJob& job) {
  const auto stride = static_cast<size_t>(job.c_stride) * sizeof(float);
  float* const upper = job.c + 32 * half;
  float* const lower = upper + 16 * job.c_stride;
  if (job.first) {
    zero_sums();
  } else {
    _tile_loadd(0, upper, stride);
    _tile_loadd(1, upper + 16, stride);
    _tile_loadd(2, lower, stride);
    _tile_loadd(3, lower + 16, stride);
  }
  if (job.steps > 0) gather_pairs<1>(job.panel, job.offsets, half, job.scratch->pairs[0]);
  for (int64_t step = 0; step < job.steps; ++step) {
    if (step + 1 < job.steps) {
      gather_pairs<1>(job.panel, job.offsets + 32 * (step + 1), half,
                      job.scratch->pairs[(step + 1) % 2]);
    }
    auto& pairs = job.scratch->pairs[step % 2];
    _tile_loadd(4, job.values + step * 1024, 64);
    _tile_loadd(6, pairs[2 * half], 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, pairs[2 * half + 1], 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, job.values + step * 1024 + 512, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, upper, stride);
  _tile_stored(1, upper + 16, stride);
  _tile_stored(2, lower, stride);
  _tile_stored(3, lower + 16, stride);
}

void sparse_amx(const SparseTileJob& job) {
  if (job.share == 16) return sparse_16(job);
  sparse_32<0>(job);
  sparse_32<1>(job);
}

// Four tiles loaded for four products: the unit is busy for twice as long as the loads take.
void dense_amx(const DenseTileJob& job) {
  const auto stride = static_cast<size_t>(job.a_stride) * sizeof(Bf16);
  const Bf16* const lower = job.a + 16 * job.a_stride;
  zero_sums();
  for (int64_t step = 0; step < job.steps; ++step) {
    _tile_loadd(4, job.a + 32 * step, stride);
    _tile_loadd(6, job.b + step * 1024, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, job.b + step * 1024 + 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, lower + 32 * step, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  constexpr size_t kRow = 32 * sizeof(float);
  _tile_stored(0, job.c, kRow);
  _tile_stored(1, job.c + 16, kRow);
  _tile_stored(2, job.c + 16 * 32, kRow);
  _tile_stored(3, job.c + 16 * 32 + 16, kRow);
}

double busy_amx(int64_t steps) {
  zero_sums();
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t step = 0; step < steps; ++step) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
  }
  return static_cast<double>(steps) * 4 * 2 * 16 * 16 * 32;
}

}  // namespace

const TileOps kAmxTiles = {begin_amx, end_amx, sparse_amx, dense_amx, busy_amx};

}  // namespace weft

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#endif
