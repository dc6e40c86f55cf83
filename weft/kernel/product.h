// A sparse product as one nest of loops, whatever the layer:
//
//   C [rows, cols]  =  A [rows, depth], packed in panels  *  B [depth, cols], dense
//
//                cols, cut into stripes            B comes from a PanelSource, a stripe at a time,
//              +----+----+----+                    copied into panels that fit L1; C goes to a
//        depth |    | B  |    |                    TileSink, a block of rows at a time. They know
//        how
//              +----+----+----+                    activations lie; the loops do not.
//              +----+----+----+
//   rows,  A   |    | C  |    |                    Threads take stripes, or parts of one when there
//   blocks     +----+----+----+                    are few. The result does not depend on them.
//
// Cost: 2 * kept * cols flops; B is copied once, C once.
#pragma once

#include "weft/pack/packed_matrix.h"

namespace weft {

// A rectangle of B or C.
struct Range {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_col = 0;
  int64_t cols = 0;
};

class PanelSource {
 public:
  virtual ~PanelSource() = default;
  // Copies a range of B, row r to `to + r * stride`.
  virtual void copy(const Range& range, float* to, int64_t stride) const = 0;
};

class TileSink {
 public:
  virtual ~TileSink() = default;
  // Takes a finished range of C, row r at `tile + r * stride`. Every element comes once; ranges
  // that come from different threads never overlap.
  virtual void take(const Range& range, const float* tile, int64_t stride) const = 0;
};

void multiply(const PackedMatrix& a, int64_t cols, const PanelSource& b, const TileSink& c);

}  // namespace weft
