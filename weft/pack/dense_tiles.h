// DenseTiles: a dense matrix B [depth, cols] as the right operand of a unit that multiplies tiles
// (kernel/tile/tile_ops.h), rounded to bf16 as it is packed.
//
//   [cols / 32, depth / 32, 2 tiles, 16 pairs, 16 columns, 2]     zeros past the edges
//
// Two numbers that follow each other in depth are adjacent. A block of 32 columns lies
// together, so that a product reads it from one end to the other. Cost: one pass.
#pragma once

#include <cstdint>

#include "weft/core/aligned_buffer.h"
#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"

namespace weft {

class DenseTiles {
 public:
  static constexpr int kColumns = 32;  // of a block
  static constexpr int kDepth = 32;    // of a step

  // B = w, or its transpose. Memory that is there already is used again.
  void pack(MatrixView<const float> w, bool transposed);
  void pack(MatrixView<const Bf16> w, bool transposed);

  int64_t depth() const { return depth_; }
  int64_t cols() const { return cols_; }
  int64_t steps() const { return steps_; }
  int64_t blocks() const { return blocks_; }
  const Bf16* block(int64_t b) const { return values_.data() + b * steps_ * kDepth * kColumns; }

 private:
  template <typename T>
  void pack_any(MatrixView<const T> w, bool transposed);

  int64_t depth_ = 0, cols_ = 0, steps_ = 0, blocks_ = 0;
  AlignedBuffer<Bf16> values_;
};

}  // namespace weft
