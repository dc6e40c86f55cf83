// KeptEntries: which entries of the gradient of the weights a mask keeps, in the order in which
// masked_weight.h computes them.
#pragma once

#include <cstdint>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"

namespace weft {

// Of a [rows, cols] matrix: blocks of columns that make a panel of xᵀ, in a block row by row, in a row
// from left to right.
class KeptEntries {
 public:
  // The pattern says how wide blocks should be. The mask need not obey it; the closer, the faster.
  KeptEntries(const Mask& mask, const Pattern& pattern);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t block() const { return block_; }
  int64_t blocks() const { return (cols_ + block_ - 1) / block_; }
  int64_t tokens() const { return tokens_; }  // of a panel

  // Entries starts(b)[r] to starts(b)[r + 1] are of row r in block b. `index` has their columns,
  // counted from the first of the block; the last one is repeated until there are a multiple of 4.
  const uint32_t* starts(int64_t block) const { return starts_.data() + block * rows_; }
  const uint16_t* index() const { return index_.data(); }
  int64_t size() const { return static_cast<int64_t>(index_.size()); }

 private:
  int64_t rows_, cols_, block_, tokens_;
  std::vector<uint32_t> starts_;  // [blocks * rows + 1]
  std::vector<uint16_t> index_;
};

}  // namespace weft
