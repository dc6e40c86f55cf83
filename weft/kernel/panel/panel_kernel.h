// The loop of every sparse product: cells of a panel pack times one panel of the dense operand.
//
//   C[row, 0 .. width) (+)= sum over the entries of row:  value * B[entry, 0 .. width)
//
// One accumulator per element of C, entries in order of depth: the result does not depend on tiles,
// vectors or threads, only on whether the CPU has fused multiply-add.
#pragma once

#include "weft/pack/packed_matrix.h"

namespace weft {

// Lines of memory that will be needed soon: a few are fetched into L2 with every two rows of C. All
// at once they would wait for each other.
struct Prefetch {
  const float* const* next = nullptr;
  const float* const* end = nullptr;
  int64_t per_pair = 0;
};

struct PanelJob {
  int64_t panel = 0;
  int64_t first_cell = 0;    // of whole blocks of sharing rows
  int64_t last_cell = 0;     // one past
  const float* b = nullptr;  // [rows of the panel, tile.width], on a cache line
  int width = 0;             // columns in use: a multiple of 16, at most tile.width
  // [rows, tile.width], on a cache line; rows counted from the first of first_cell, up to the last
  // that a whole block would have.
  float* c = nullptr;
  bool first = false;            // C is not read: it begins as zero
  Prefetch* prefetch = nullptr;  // advanced; null, or rows that share: nothing is fetched
};

void multiply_panel(const PanelView& a, const PanelJob& job);

}  // namespace weft
