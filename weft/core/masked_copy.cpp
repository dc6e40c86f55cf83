#include "weft/core/masked_copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "weft/core/parallel.h"

namespace weft {
namespace {

// Weights whose masking is worth another thread: about 10 us of one.
constexpr int64_t kWeightsPerItem = 1 << 16;

// Four numbers as unsigned integers, to be kept or cleared without asking each of them.
template <typename T>
using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
template <typename T>
using Four = std::array<Bits<T>, 4>;

template <typename T>
constexpr std::array<Four<T>, 16> kept_by_four_bits() {
  std::array<Four<T>, 16> kept{};
  for (size_t bits = 0; bits < 16; ++bits) {
    for (size_t k = 0; k < 4; ++k) kept[bits][k] = ((bits >> k) & 1) != 0 ? ~Bits<T>{0} : 0;
  }
  return kept;
}

// `count` <= 64 numbers; from and to may be the same.
template <typename T>
void copy_kept(const T* from, uint64_t kept, int count, T* to) {
  static constexpr std::array<Four<T>, 16> kKept = kept_by_four_bits<T>();
  int k = 0;
  for (; k + 4 <= count; k += 4, kept >>= 4) {
    Four<T> four;
    std::memcpy(&four, from + k, sizeof(four));
    for (size_t i = 0; i < 4; ++i) four[i] &= kKept[kept & 15][i];
    std::memcpy(to + k, &four, sizeof(four));
  }
  for (; k < count; ++k, kept >>= 1) to[k] = (kept & 1) != 0 ? from[k] : T{};
}

// Calls copy(index of the first, bits of the mask, how many) for up to 64 weights of a row.
template <typename Copy>
void for_each_word(const Mask& mask, Copy copy) {
  if (mask.rows() == 0 || mask.cols() == 0) return;
  const int64_t cols = mask.cols();
  const int64_t rows_at_once = std::max<int64_t>(1, kWeightsPerItem / cols);
  const auto item = [&](int64_t i) {
    const int64_t last = std::min(mask.rows(), (i + 1) * rows_at_once);
    for (int64_t row = i * rows_at_once; row < last; ++row) {
      for (int64_t col = 0; col < cols; col += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, cols - col));
        copy(row * cols + col, mask.row_words(row)[col / 64], count);
      }
    }
  };
  const int64_t items = (mask.rows() + rows_at_once - 1) / rows_at_once;
  parallel_for(items, item);
}

}  // namespace

template <typename T>
void masked_copy(const T* from, const Mask& mask, T* out) {
  for_each_word(mask, [&](int64_t at, uint64_t kept, int count) {
    copy_kept(from + at, kept, count, out + at);
  });
}

void masked_copy(const float* from, const Mask& mask, Bf16* out) {
  for_each_word(mask, [&](int64_t at, uint64_t kept, int count) {
    std::array<float, 64> floats;
    copy_kept(from + at, kept, count, floats.data());
    std::transform(floats.data(), floats.data() + count, out + at, to_bf16);
  });
}

template <typename T>
void add_where_pruned(const T* from, const Mask& mask, T scale, T* to) {
  for_each_word(mask, [&](int64_t at, uint64_t kept, int count) {
    std::array<T, 64> pruned;
    copy_kept(from + at, ~kept, count, pruned.data());
    for (int k = 0; k < count; ++k) to[at + k] += scale * pruned[static_cast<size_t>(k)];
  });
}

template void masked_copy(const float*, const Mask&, float*);
template void masked_copy(const double*, const Mask&, double*);
template void add_where_pruned(const float*, const Mask&, float, float*);
template void add_where_pruned(const double*, const Mask&, double, double*);

}  // namespace weft
