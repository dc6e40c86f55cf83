#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/bf16_rows.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <array>

#include "weft/core/aligned_buffer.h"
#include "weft/core/bf16-inl.h"
#include "weft/core/parallel.h"
#include "weft/kernel/bf16_rows.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void ExpandRow(const Bf16* HWY_RESTRICT from, int64_t size, float* HWY_RESTRICT to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) hn::StoreU(LoadBf16(d, from + i), d, to + i);
  for (; i < size; ++i) to[i] = to_float(from[i]);
}

void RoundRow(const float* HWY_RESTRICT from, int64_t size, Bf16* HWY_RESTRICT to) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) StoreBf16(d, hn::LoadU(d, from + i), to + i);
  for (; i < size; ++i) to[i] = to_bf16(from[i]);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

// Numbers that are worth another thread: about 10 us of one.
constexpr int64_t kNumbersPerItem = 1 << 16;

template <typename From, typename To, typename Convert>
void convert_rows(MatrixView<const From> from, MatrixView<To> to, Convert convert) {
  const bool one_row = from.row_stride == from.cols && to.row_stride == to.cols;
  const int64_t rows = one_row ? 1 : from.rows;
  const int64_t cols = one_row ? from.rows * from.cols : from.cols;
  if (rows == 0 || cols == 0) return;
  // Long rows are cut, short ones put together.
  const int64_t length = std::min(cols, kNumbersPerItem);
  const int64_t pieces = (cols + length - 1) / length;
  const int64_t rows_at_once = std::max<int64_t>(1, kNumbersPerItem / cols);
  const int64_t items = (rows + rows_at_once - 1) / rows_at_once * pieces;
  const auto item = [&](int64_t i) {
    const int64_t first = i / pieces * rows_at_once, col = i % pieces * length;
    for (int64_t r = first; r < std::min(rows, first + rows_at_once); ++r) {
      convert(from.data + r * from.row_stride + col, std::min(length, cols - col),
              to.data + r * to.row_stride + col);
    }
  };
  items == 1 ? item(0) : parallel_for(items, item);
}

}  // namespace

HWY_EXPORT(ExpandRow);
HWY_EXPORT(RoundRow);

void expand_here(const Bf16* from, int64_t size, float* to) {
  HWY_DYNAMIC_DISPATCH(ExpandRow)(from, size, to);
}
void round_here(const float* from, int64_t size, Bf16* to) {
  HWY_DYNAMIC_DISPATCH(RoundRow)(from, size, to);
}

void expand(MatrixView<const Bf16> from, MatrixView<float> to) {
  convert_rows(from, to, expand_here);
}
void round_to_bf16(MatrixView<const float> from, MatrixView<Bf16> to) {
  convert_rows(from, to, round_here);
}
void expand(const Bf16* from, int64_t size, float* to) {
  expand(MatrixView<const Bf16>(from, 1, size), MatrixView<float>(to, 1, size));
}
void round_to_bf16(const float* from, int64_t size, Bf16* to) {
  round_to_bf16(MatrixView<const float>(from, 1, size), MatrixView<Bf16>(to, 1, size));
}

float* fp32_copy(CopyOf place, int64_t size) {
  thread_local std::array<AlignedBuffer<float>, 3> copies;
  AlignedBuffer<float>& copy = copies[static_cast<size_t>(place)];
  copy.reserve(static_cast<size_t>(size));
  return copy.data();
}

const float* expanded(CopyOf place, const Bf16* from, int64_t size) {
  float* wide = fp32_copy(place, size);
  expand(from, size, wide);
  return wide;
}
MatrixView<const float> expanded(CopyOf place, MatrixView<const Bf16> from) {
  const MatrixView<float> wide(fp32_copy(place, from.rows * from.cols), from.rows, from.cols);
  expand(from, wide);
  return wide;
}

}  // namespace weft
#endif
