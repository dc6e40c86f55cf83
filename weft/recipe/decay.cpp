#include "weft/recipe/decay.h"

#include <algorithm>

#include "weft/core/parallel.h"

namespace weft {

void add_where_pruned(const float* weights, const Mask& mask, float scale, float* to) {
  const int64_t cols = mask.cols();
  constexpr int64_t kRows = 64;
  parallel_for((mask.rows() + kRows - 1) / kRows, [&](int64_t item) {
    for (int64_t row = item * kRows; row < std::min(mask.rows(), (item + 1) * kRows); ++row) {
      const float* from = weights + row * cols;
      float* into = to + row * cols;
      for (int64_t col = 0; col < cols; col += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, cols - col));
        const uint64_t kept = mask.bits(row, col, count);
        for (int k = 0; k < count; ++k) {
          into[col + k] += ((kept >> k) & 1) != 0 ? 0.0f : scale * from[col + k];
        }
      }
    }
  });
}

}  // namespace weft
