#include "weft/core/bf16.h"
#include "weft/core/error.h"
#include "weft/pack/pack.h"
#include "weft/pack/sections.h"

namespace weft {
namespace {

float value_at(const void* values, ValueType type, int64_t i) {
  return type == ValueType::kF32 ? static_cast<const float*>(values)[i]
                                 : bf16_to_float(static_cast<const uint16_t*>(values)[i]);
}

// Calls body(row, k, value) for every value of the matrix.
template <typename Body>
void for_each_value(const PanelView& view, Body body) {
  const int64_t line = int64_t{view.tile.width} * 4;
  for (int64_t p = 0; p < view.panels; ++p) {
    for (int64_t cell = 0; cell < view.cells; ++cell) {
      const uint32_t* start = view.starts + p * view.cells + cell;
      for (int64_t e = start[0]; e < start[1]; ++e) {
        const int64_t k = p * view.tile.depth + view.offsets[e] / line;
        for (int m = 0; m < view.share; ++m) {
          const int64_t row = view.first_row(cell) + int64_t{m} * view.row_stride;
          if (row < view.rows)
            body(row, k, value_at(view.values, view.value_type, e * view.share + m));
        }
      }
    }
  }
}

}  // namespace

Unpacked unpack(const PackedMatrix& packed) {
  Unpacked result{std::vector<float>(static_cast<size_t>(packed.rows() * packed.depth()), 0.0f),
                  Mask(packed.rows(), packed.depth())};
  for_each_value(packed.panel(), [&](int64_t row, int64_t k, float value) {
    result.values[static_cast<size_t>(row * packed.depth() + k)] = value;
    result.mask.set(row, k, true);
  });
  return result;
}

int64_t PackedMatrix::kept() const {
  int64_t kept = 0;
  for_each_value(panel(), [&](int64_t, int64_t, float) { ++kept; });
  return kept;
}

}  // namespace weft
