#include "weft/train/layers/operands.h"

#include "weft/kernel/sparse.h"
#include "weft/train/recipes/masked_copy.h"

namespace weft {

PanelOptions Operand::pack_options() const {
  const PackTile tile =
      ragged ? tile_for(density(), pattern.share(), pattern.group()) : tile_for(pattern);
  return {pattern, tile, ValueType::kF32, ragged, 0};
}

const float* DenseCopy::of(const Operand& operand, const WeightShape& shape) {
  if (operand.mask == nullptr) return operand.values;
  if (valid_) return copy_.data();
  copy_.reserve(static_cast<size_t>(shape.outs * shape.cols()));
  masked_copy(operand.values, *operand.mask, copy_.data());
  valid_ = true;
  return copy_.data();
}

}  // namespace weft
