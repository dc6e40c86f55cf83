// How wide and deep a panel of the dense operand is.
//
// Width: a few vectors, which stay in registers beside each other (panel_kernel.cpp). Depth: what
// then fits L1, beside the lines of the pack and of C that pass through. A sparser matrix has fewer
// entries per row of a panel to pay for loading and storing a row of C, so its panels are deeper
// and narrower, and may be a little larger than L1 would hold at ease.
#include <unistd.h>

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/isa.h"
#include "weft/kernel/sparse.h"

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

// Vectors in a row of a panel. With AVX2 (AMD Zen 3, 1024 x 768 x 3072): 2:4 35.5 ms with 4 vectors
// and 33.4 with 6, 1:8 and 1:16 no difference. Two rows that share: 94, 92 GFLOP/s for 4, 6, the
// loop alone; four: 95, 91 for 2, 4. Vectors of four floats are 8 in a row, whole lines, in two
// parts; 4 took 47.1 instead of 43.8 ms (512 x 768 x 3072, 2:4, SSE4). AVX-512 was not at hand:
// twice the registers, and rows twice as long, which leaves half the depth, so a very sparse matrix
// takes fewer vectors instead.
int vectors(double density, int share) {
  const bool many_registers = vector_floats() == 16;
  if (share == 1) return many_registers && density <= 0.1 ? 4 : 6;
  if (share == 2) return many_registers ? 6 : 4;
  return many_registers ? 4 : 2;
}

}  // namespace

PackTile tile_for(double density, int share, int group) {
  WEFT_CHECK(density >= 0.0 && density <= 1.0 && share >= 1 && group >= 1,
             "no tile for a density of {}, {} rows that share, groups of {}", density, share,
             group);
  constexpr int kLine = 16;  // floats
  const int width = (vectors(density, share) * vector_floats() + kLine - 1) / kLine * kLine;
  const int budget = density > 0.2 ? l1_bytes() / 8 * 6 : l1_bytes() / 8 * 9;
  const int depth = std::min(budget, 1 << 16) / (width * 4);
  return {std::max(depth / group, 1) * group, width};
}

}  // namespace weft
