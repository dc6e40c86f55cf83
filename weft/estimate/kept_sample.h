// A tile of a sampled gradient, only what is kept of it: for packers.
//
// Every group keeps exactly min(keep, its length) entries of a cell, so slot s of one cell is of
// the same group as slot s of any other, and all cells fill a slot together, one per lane:
//
//   slot(s)  group s / keep, its kept entry s % keep in order of tokens
//   value    g[index, member] / π, the float product of mvue.h
//
// Memory: the tile three times over, less what is not kept. Made once for many tiles.
#pragma once

#include <cstdint>

#include "weft/core/aligned_buffer.h"
#include "weft/core/matrix_view.h"
#include "weft/estimate/mvue.h"

namespace weft {

class KeptSample {
 public:
  // For tiles of up to `tokens` tokens and exactly `outs` outputs.
  KeptSample(const Pattern& pattern, int64_t tokens, int64_t outs);

  // g: [tokens, outs], beginning with a group and a block; the pattern that of the constructor.
  // `next`: the tile that comes after, whose lines are fetched meanwhile: a few lines here and
  // there, a row of the gradient apart, are nothing that a CPU foresees.
  void draw(MatrixView<const float> g, const SampleOptions& options,
            MatrixView<const float> next = {});

  int64_t cells() const { return cells_; }
  int64_t slots() const { return slots_; }
  // [slots, stride]: the token of g.
  const int32_t* indices() const { return indices_.data(); }
  // [slots, share, stride]; zero for members that a cell does not have.
  const float* values() const { return values_.data(); }
  int64_t stride() const { return stride_; }  // >= cells()

 private:
  void arrange(MatrixView<const float> g);
  template <int64_t kGroup>
  void arrange_blocks(MatrixView<const float> g);

  Pattern pattern_;
  int64_t tokens_;
  int64_t outs_;
  int64_t cells_;
  int64_t stride_;
  int64_t slots_ = 0;
  AlignedBuffer<float> planes_;     // [share, tokens, stride]
  AlignedBuffer<double> inverses_;  // [stride]: of the members a cell has
  AlignedBuffer<float> norms_;      // [tokens, stride], with sharing
  AlignedBuffer<float> values_;
  AlignedBuffer<int32_t> indices_;
};

}  // namespace weft
