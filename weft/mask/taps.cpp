#include "weft/mask/taps.h"

#include <algorithm>
#include <array>

namespace weft {

template <typename T>
std::vector<T> take_taps(MatrixView<const T> block, const WeightShape& shape) {
  std::vector<T> taken(static_cast<size_t>(block.rows * shape.cols()));
  for (int64_t r = 0; r < block.rows; ++r) {
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      const T* from = block.row(r) + tap;
      T* to = taken.data() + (tap * block.rows + r) * shape.ins;
      for (int64_t i = 0; i < shape.ins; ++i) to[i] = from[i * shape.taps];
    }
  }
  return taken;
}

// As many inputs at once as fit a word with all their taps, at most four: the bits of a tap, looked
// up with gaps between them, fall between those of the other taps.
//
//   three taps:   bits dcba of tap 0 -> ..d..c..b..a     of tap 1, shifted by 1 -> .d..c..b..a.
void put_taps(const Mask& of_taps, const WeightShape& shape, Mask& mask, int64_t first_row) {
  const int64_t taps = shape.taps, rows = taps == 0 ? 0 : of_taps.rows() / taps;
  if (taps > 64) {  // bit by bit
    for (int64_t row = 0; row < of_taps.rows(); ++row) {
      const int64_t tap = row / rows, r = row % rows;
      for (int64_t i = 0; i < shape.ins; ++i) {
        mask.set(first_row + r, i * taps + tap, of_taps.at(row, i));
      }
    }
    return;
  }
  const int64_t at_once = std::min<int64_t>(4, taps == 0 ? 4 : 64 / taps);
  std::array<uint64_t, 16> spread{};
  for (size_t bits = 0; bits < spread.size(); ++bits) {
    for (int64_t i = 0; i < at_once; ++i) spread[bits] |= uint64_t{(bits >> i) & 1} << (i * taps);
  }
  for (int64_t r = 0; r < rows; ++r) {
    MaskRowWriter writer(mask.row_words(first_row + r));
    for (int64_t i = 0; i < shape.ins; i += at_once) {
      const auto count = static_cast<int>(std::min(at_once, shape.ins - i));
      uint64_t together = 0;
      for (int64_t tap = 0; tap < taps; ++tap) {
        together |= spread[of_taps.bits(tap * rows + r, i, count)] << tap;
      }
      writer.append(together, count * static_cast<int>(taps));
    }
    writer.finish();
  }
}

Mask take_tap(const Mask& mask, const WeightShape& shape, int64_t tap) {
  if (shape.taps == 1) return mask;
  Mask taken(mask.rows(), shape.ins);
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t i = 0; i < shape.ins; ++i) {
      if (mask.at(r, i * shape.taps + tap)) taken.set(r, i, true);
    }
  }
  return taken;
}

template std::vector<float> take_taps(MatrixView<const float>, const WeightShape&);
template std::vector<double> take_taps(MatrixView<const double>, const WeightShape&);

}  // namespace weft
