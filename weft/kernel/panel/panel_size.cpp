#include "weft/kernel/panel/panel_size.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/isa.h"

namespace weft {
namespace {

int vector_floats() {
  const std::string isa = current_isa();
  if (isa.starts_with("avx3")) return 16;
  return isa == "avx2" ? 8 : 4;
}

int l1_bytes() {
  static const long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
  return bytes >= (16 << 10) && bytes <= (512 << 10) ? static_cast<int>(bytes) : 32 << 10;
}

int l2_bytes() {
  static const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes >= (128 << 10) && bytes <= (64 << 20) ? static_cast<int>(bytes) : 256 << 10;
}

// Vectors in a row of a panel. AMD Zen 3 with AVX2, one thread: 2:4 with 4 vectors was a little
// faster than with 6 on a quiet machine and slower on a busy one (the pack is read more often), 1:8
// no different, 1:16 3 % faster. Two rows that share: 94, 92 GFLOP/s for 4, 6, the loop alone;
// four: 95, 91 for 2, 4. Vectors of four floats: 8, which SSE4 takes in two parts, 43.8 ms; 4, 47.1
// (512 x 768 x 3072, 2:4).
//
// AVX-512: a value is one more load for its vectors, so more of them are better; but rows are twice
// as long and panels half as deep. AMD Zen 5, one thread, 2048 x 768 x 3072, ratios to dense of fwd
// and bwd_w: 2:4 with 6, 8, 10, 12 vectors 1.29 and 1.39, 1.32 and 1.42, 1.36 and 1.45, 1.34 and
// 1.45. In panels of 9 eighths of L1: 1:4 with 6, 8, 10 vectors 2.19 and 2.34, 2.27 and 2.53, 2.27
// and 2.50; 1:8 3.82 and 4.21, 3.81 and 4.38, 3.55 and 4.00. Two rows that share, with 4, 6, 10: 1.56
// and 1.61, 1.63 and 1.70, 1.58 and 1.67.
int vectors(double density, int share) {
  const int floats = vector_floats();
  const bool many_registers = floats == 16;
  if (share == 1 && many_registers) return density > 0.3 ? 10 : density > 0.2 ? 8 : 6;
  if (share == 1) return floats == 4 ? 8 : density > 0.1 ? 6 : 4;
  if (share == 2) return many_registers ? 6 : 4;
  return many_registers ? 4 : 2;
}

// Whole groups. Rows that do not share are multiplied four entries at a time, so where it costs
// little depth they have a multiple of four (ragged rows have what they have).
int whole_depth(int depth, double density, int share, int group) {
  const int whole = std::max(depth / group, 1) * group;
  const int keep = std::max(1, static_cast<int>(std::lround(density * group)));
  const int four_entries = group * 4 / std::gcd(keep, 4);
  const int fours = whole / four_entries * four_entries;
  return share == 1 && fours * 8 >= whole * 7 ? fours : whole;
}

constexpr int kLine = 16;  // floats

int width_of(double density, int share) {
  return (vectors(density, share) * vector_floats() + kLine - 1) / kLine * kLine;
}

// Rows of a panel of that width. AMD Zen 5, AVX-512, one thread, with 6, 7, 8 eighths of L1: 2:4 fwd
// 1.36, 1.32, 1.29; 1:4 fwd 2.38, 2.34 with 6, 7. With AVX2 1:4 has 3.08 with 6 and 3.06 with 7.
int depth_of(int width, double density) {
  return std::min(l1_bytes() / 8 * (density > 0.2 ? 6 : 9), 1 << 16) / (width * 4);
}

}  // namespace

// AMD Zen 5 with 1 MB of L2, AVX-512, one thread, 2048 x 768 x 3072 at 2:4, with 64, 128, 256 KB:
// fwd 1.29, 1.31, 1.32, bwd_w 1.36, 1.40, 1.42 of dense. With AVX2 no difference.
int64_t tile_bytes() { return std::clamp<int64_t>(l2_bytes() / 4, 64 << 10, 256 << 10); }

PackTile tile_for(double density, int share, int group) {
  WEFT_CHECK(density >= 0.0 && density <= 1.0 && share >= 1 && group >= 1,
             "no panel size for density {}, {} sharing rows, groups of {}", density, share, group);
  const int width = width_of(density, share);
  return {whole_depth(depth_of(width, density), density, share, group), width};
}

// The copy of a panel is in L1 when it is multiplied (conv/gather.h), and rows are packed in order
// of (channel, tap): with whole groups of channels, rows of a mask that is N:M have equal counts,
// which a CPU foresees. Intel Skylake with AVX-512, 128 channels at 28 x 28, 3 x 3, ratio to dense
// with 45 x 128, 36 x 128, 72 x 64, 72 x 80, 72 x 96: 2:4 1.11, 1.12, 1.06, 1.13, 1.15; 1:4 -,
// 1.65, 1.61, 1.68, 1.83 (medians on a noisy machine).
PackTile conv_tile_for(double density, int share, int64_t taps) {
  constexpr int64_t kGroup = 4;
  const int width = share == 1 && vector_floats() == 16 ? 96 : width_of(density, share);
  const int64_t depth = l1_bytes() / 8 * (density > 0.2 ? 7 : 9) / (width * 4);
  const int64_t channels = taps == 0 ? 0 : depth / taps;
  const int64_t whole = channels >= kGroup ? channels / kGroup * kGroup : channels;
  return {static_cast<int>(whole == 0 ? depth : whole * taps), width};
}

PackTile conv_gradient_tile_for(const Pattern& pattern, int64_t ins) {
  constexpr int64_t kMostChannels = 64;
  const int64_t blocks = std::max<int64_t>(1, ceil_div(ins, kMostChannels));
  const int64_t lines = std::max<int64_t>(1, ceil_div(ceil_div(ins, blocks), kLine));
  const int width = static_cast<int>(lines * kLine);
  const double density = static_cast<double>(pattern.keep()) / pattern.group();
  return {whole_depth(depth_of(width, density), density, pattern.share(), pattern.group()), width};
}

}  // namespace weft
