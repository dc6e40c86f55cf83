// KeptEntries: which entries of the gradient of the weights a mask keeps, in the order in which
// masked_weight.h and conv/masked_conv.h compute them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"

namespace weft {

// Of a [rows, ins * taps] matrix, the weights of a layer as stored (core/weight_shape.h): blocks of
// some inputs at one tap, which make a panel of xᵀ; tap by tap for the same inputs. In a block row
// by row, in a row from left to right.
class KeptEntries {
 public:
  // The pattern says how wide blocks should be. The mask need not obey it; the closer, the faster.
  KeptEntries(const Mask& mask, const Pattern& pattern, int64_t taps = 1);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t taps() const { return taps_; }
  int64_t ins() const { return cols_ / taps_; }
  int64_t block() const { return block_; }  // inputs of a block; the last ones may have fewer
  int64_t blocks() const { return (ins() + block_ - 1) / block_ * taps_; }
  int64_t tokens() const { return tokens_; }  // of a panel

  // Entries starts(b)[r] to starts(b)[r + 1] are of row r in block b, which has the inputs from
  // b / taps * block on at tap b % taps. `index` counts inputs from the first of the block; the last
  // one is repeated until there are a multiple of 4.
  const uint32_t* starts(int64_t block) const { return starts_.data() + block * rows_; }
  const uint16_t* index() const { return index_.data(); }
  int64_t size() const { return static_cast<int64_t>(index_.size()); }

 private:
  int64_t rows_, cols_, taps_, block_, tokens_;
  std::vector<uint32_t> starts_;  // [blocks * rows + 1]
  std::vector<uint16_t> index_;
};

// The entries of the mask that was asked for last: a mask that stays the same is not read again.
class KeptOfMask {
 public:
  const KeptEntries& of(const Mask& mask, const Pattern& pattern, int64_t taps = 1);

 private:
  std::optional<KeptEntries> kept_;
  Mask mask_;
  Pattern pattern_{1, 1};
};

}  // namespace weft
