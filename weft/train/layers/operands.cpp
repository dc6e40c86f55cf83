#include "weft/train/layers/operands.h"

#include "weft/core/parallel.h"
#include "weft/kernel/sparse.h"

namespace weft {

PanelOptions Operand::pack_options() const {
  const PackTile tile =
      ragged ? tile_for(density(), pattern.share(), pattern.group()) : tile_for(pattern);
  return {pattern, tile, ValueType::kF32, ragged, 0};
}

const float* DenseCopy::of(const Operand& operand, const WeightShape& shape) {
  if (operand.mask == nullptr) return operand.values;
  if (valid_) return copy_.data();
  const int64_t cols = shape.cols();
  copy_.reserve(static_cast<size_t>(shape.outs * cols));
  constexpr int64_t kRows = 64;
  parallel_for((shape.outs + kRows - 1) / kRows, [&](int64_t item) {
    for (int64_t row = item * kRows; row < std::min(shape.outs, (item + 1) * kRows); ++row) {
      const float* from = operand.values + row * cols;
      float* to = copy_.data() + row * cols;
      for (int64_t col = 0; col < cols; col += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, cols - col));
        const uint64_t kept = operand.mask->bits(row, col, count);
        for (int k = 0; k < count; ++k) {
          to[col + k] = ((kept >> k) & 1) != 0 ? from[col + k] : 0.0f;
        }
      }
    }
  });
  valid_ = true;
  return copy_.data();
}

void zero_where_pruned(const Mask& mask, float* dw) {
  const int64_t cols = mask.cols();
  constexpr int64_t kRows = 64;
  parallel_for((mask.rows() + kRows - 1) / kRows, [&](int64_t item) {
    for (int64_t row = item * kRows; row < std::min(mask.rows(), (item + 1) * kRows); ++row) {
      for (int64_t col = 0; col < cols; col += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, cols - col));
        const uint64_t kept = mask.bits(row, col, count);
        float* from = dw + row * cols + col;
        for (int k = 0; k < count; ++k) from[k] = ((kept >> k) & 1) != 0 ? from[k] : 0.0f;
      }
    }
  });
}

}  // namespace weft
