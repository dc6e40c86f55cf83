// A convolution is `taps` interleaved matrices (WeightShape): one of them taken out, or put back.
#pragma once

#include <vector>

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/weight_shape.h"

namespace weft {

// block: [rows, shape.cols()] -> [rows, shape.ins]
template <typename T>
std::vector<T> take_tap(MatrixView<const T> block, const WeightShape& shape, int64_t tap) {
  std::vector<T> taken(static_cast<size_t>(block.rows * shape.ins));
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t i = 0; i < shape.ins; ++i) {
      taken[static_cast<size_t>(r * shape.ins + i)] = block.row(r)[i * shape.taps + tap];
    }
  }
  return taken;
}

inline Mask take_tap(const Mask& mask, const WeightShape& shape, int64_t tap) {
  if (shape.taps == 1) return mask;
  Mask taken(mask.rows(), shape.ins);
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t i = 0; i < shape.ins; ++i) {
      if (mask.at(r, i * shape.taps + tap)) taken.set(r, i, true);
    }
  }
  return taken;
}

inline void put_tap(const Mask& of_tap, const WeightShape& shape, int64_t tap, Mask& mask,
                    int64_t first_row) {
  for (int64_t r = 0; r < of_tap.rows(); ++r) {
    for (int64_t i = 0; i < shape.ins; ++i) {
      mask.set(first_row + r, i * shape.taps + tap, of_tap.at(r, i));
    }
  }
}

}  // namespace weft
