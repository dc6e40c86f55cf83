#include "weft/layer/operands.h"

#include <type_traits>

#include "weft/core/masked_copy.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/pack/tiles.h"

namespace weft {

PanelOptions Operand::pack_options(Precision compute) const {
  const PackTile tile = compute == Precision::kBf16 ? tile_panel(pattern)
                        : ragged ? tile_for(density(), pattern.share(), pattern.group())
                                 : tile_for(pattern);
  // Tiles hold bf16; fp32 arithmetic would expand it for every product.
  PanelOptions options{pattern, tile, /*value_type=*/compute, ragged};
  options.row_order = row_order;
  options.rounded = precision == Precision::kBf16;
  return options;
}

template <>
AlignedBuffer<float>& DenseCopy::copy() {
  return fp32_;
}
template <>
AlignedBuffer<Bf16>& DenseCopy::copy() {
  return bf16_;
}

template <typename T>
const T* DenseCopy::of(const Operand& operand, const float* values, const WeightShape& shape) {
  if constexpr (std::is_same_v<T, float>) {
    if (operand.mask == nullptr) return values;
  }
  AlignedBuffer<T>& to = copy<T>();
  if (valid_) return to.data();
  const int64_t size = shape.outs * shape.cols();
  to.reserve(static_cast<size_t>(size));
  if (operand.mask != nullptr) {
    masked_copy(values, *operand.mask, to.data());
  } else if constexpr (std::is_same_v<T, Bf16>) {
    round_to_bf16(values, size, to.data());
  }
  valid_ = true;
  return to.data();
}
template const float* DenseCopy::of(const Operand&, const float*, const WeightShape&);
template const Bf16* DenseCopy::of(const Operand&, const float*, const WeightShape&);

void WeightPack::forget() { panels_.valid = sparse_tiles_.valid = tiled_ = false; }

const PackedMatrix& WeightPack::sparse(const Operand& operand, const float* values,
                                       const WeightShape& shape, Precision compute) {
  const bool tiles = compute == Precision::kBf16;
  Sparse& own = tiles ? sparse_tiles_ : panels_;
  if (own.valid) return own.pack;
  const MatrixView<const float> w(values, shape.outs, shape.ins);
  const PanelOptions options = operand.pack_options(compute);
  PackedMatrix& panels = tiles ? untiled_ : own.pack;
  panels = product_ == Product::kForward
               ? pack_panels(w, *operand.mask, options, std::move(panels))
               : pack_panels_transposed(w, *operand.mask, options, std::move(panels));
  if (tiles) own.pack = tiles_of(untiled_, std::move(own.pack));
  own.valid = true;
  return own.pack;
}

const DenseTiles& WeightPack::tiles(MatrixView<const Bf16> w) {
  if (!tiled_) tiles_.pack(w, /*transposed=*/product_ == Product::kForward);
  tiled_ = true;
  return tiles_;
}

}  // namespace weft
