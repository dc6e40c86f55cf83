#include "weft/train/recipes/masked_copy.h"

#include <algorithm>

#include "weft/core/parallel.h"

namespace weft {
namespace {

template <typename T, typename To, typename Convert>
void copy_kept(const T* from, const Mask& mask, To* out, Convert convert) {
  const int64_t cols = mask.cols();
  constexpr int64_t kRows = 64;
  parallel_for((mask.rows() + kRows - 1) / kRows, [&](int64_t item) {
    for (int64_t row = item * kRows; row < std::min(mask.rows(), (item + 1) * kRows); ++row) {
      for (int64_t col = 0; col < cols; col += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, cols - col));
        const uint64_t kept = mask.bits(row, col, count);
        const T* values = from + row * cols + col;
        To* to = out + row * cols + col;
        for (int k = 0; k < count; ++k) to[k] = ((kept >> k) & 1) != 0 ? convert(values[k]) : To{};
      }
    }
  });
}

}  // namespace

template <typename T>
void masked_copy(const T* from, const Mask& mask, T* out) {
  copy_kept(from, mask, out, [](T value) { return value; });
}

void masked_copy(const float* from, const Mask& mask, Bf16* out) {
  copy_kept(from, mask, out, to_bf16);
}

template void masked_copy(const float*, const Mask&, float*);
template void masked_copy(const double*, const Mask&, double*);

}  // namespace weft
