// A sparse product as one nest of loops, whatever the layer:
//
//   C [rows, cols]  =  A [rows, depth], packed in panels  *  B [depth, cols], dense
//
//                cols, cut into stripes            B comes from a PanelSource, a stripe at a time,
//              +----+----+----+                    copied into panels that fit L1; C goes to a
//        depth |    | B  |    |                    TileSink, a block of rows at a time. They know
//              +----+----+----+                    the layout of activations; the loops do not.
//              +----+----+----+
//   rows,  A   |    | C  |    |                    Threads take stripes, or parts of one when there
//   blocks     +----+----+----+                    are few. The result does not depend on them.
//
// Stripes that share work when they are copied make up a band: one thread computes them together.
//
// Cost: 2 * kept * cols flops; B is copied once, C once. Where rows are gathered (TileSink) a
// thread has a stripe of C in memory, rows * tile.width floats, and stripes are not cut into parts:
// of few columns fewer threads have work.
#pragma once

#include <memory>
#include <vector>

#include "weft/pack/packed_matrix.h"

namespace weft {

// A rectangle of B or C.
struct Range {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_col = 0;
  int64_t cols = 0;
};

// Copies the stripes of one band for one thread, and keeps what their copies have in common.
class BandReader {
 public:
  virtual ~BandReader() = default;
  // Copies a range of B, row r to `to + r * stride`. `to` is on a cache line, and `stride` is a
  // multiple of a line: a copy may write zeros behind the columns, up to the end of their line.
  virtual void copy(const Range& range, float* to, int64_t stride) = 0;
  // Appends where a copy of this range will read, an address per line of memory: only where a CPU
  // does not foresee it.
  virtual void foresee(const Range& /*range*/, std::vector<const float*>& /*lines*/) const {}
};

class PanelSource {
 public:
  virtual ~PanelSource() = default;
  virtual std::unique_ptr<BandReader> band(int64_t first_col, int64_t cols) const = 0;

  // Stripes in a band. More than one: stripes have tile.width columns each.
  virtual int64_t stripes_per_band() const { return 1; }
  // Rows of B that are copied before they are multiplied, if a panel is not deeper. Many are best
  // where a copy is expensive, since C then need not wait for the next copy; few are best where it
  // is cheap, since they are still in L1.
  virtual int64_t depth_at_once() const { return 4096; }
};

class TileSink {
 public:
  virtual ~TileSink() = default;
  // Takes a finished range of C, row r at `tile + r * stride`. Every element comes once; ranges
  // that come from different threads never overlap.
  virtual void take(const Range& range, const float* tile, int64_t stride) const = 0;

  // Rows of a pack with an order of its own are finished in that order. A sink that stores rows for
  // themselves takes them one by one. One that stores many side by side says that it gathers: it
  // gets all rows of a stripe at once, row r at rows[r].
  virtual bool gathers() const { return false; }
  virtual void gather(const Range& range, const float* const* rows) const {
    for (int64_t r = 0; r < range.rows; ++r) {
      take({range.first_row + r, 1, range.first_col, range.cols}, rows[r], 0);
    }
  }
};

// Where each row stands: the inverse of an order.
std::vector<int64_t> places_of(const int32_t* order, int64_t rows);

void multiply_panels(const PackedMatrix& a, int64_t cols, const PanelSource& b, const TileSink& c);

}  // namespace weft
