#include "weft/pack/largest_of.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/mask/solver.h"

namespace weft {
namespace {

// One segment after the other, since groups do not straddle them.
Mask solve_segments(MatrixView<const float> band, const Pattern& pattern, int64_t segment) {
  const Solver& magnitude = solver("magnitude");
  const WeightShape shape{band.rows, segment, 1};
  Mask mask(band.rows, band.cols);
  std::vector<float> taken(static_cast<size_t>(band.rows * segment));
  for (int64_t begin = 0; begin < band.cols; begin += segment) {
    for (int64_t r = 0; r < band.rows; ++r) {
      std::memcpy(taken.data() + r * segment, band.row(r) + begin,
                  static_cast<size_t>(segment) * sizeof(float));
    }
    Mask part = find_mask(magnitude, taken.data(), shape, pattern);
    if (segment == band.cols) return part;
    for (int64_t r = 0; r < band.rows; ++r) {
      for (int64_t c = 0; c < segment; c += 64) {
        const int width = static_cast<int>(std::min<int64_t>(64, segment - c));
        mask.put_bits(r, begin + c, width, part.bits(r, c, width));
      }
    }
  }
  return mask;
}

}  // namespace

Mask largest_of(MatrixView<const float> w, int64_t first, int64_t rows, const Pattern& pattern,
                int64_t segment) {
  const MatrixView<const float> band = w.rows_from(first, rows);
  try {
    return solve_segments(band, pattern, segment);
  } catch (const UnusableWeightError&) {
    require_usable(band, first);  // throws again, with the row and column of w
    throw;
  }
}

}  // namespace weft
