#include "weft/mask/sharing.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/mask/sharing.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <cassert>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<double, 4>;  // so that groups of four fill a vector, if not two

// One column of sums: of |members[r, first + t * width]|, over all rows r and the t < copies that
// are still in the matrix.
template <typename T>
double SumColumn(MatrixView<const T> members, int64_t first, int64_t copies, int64_t width) {
  double sum = 0;
  const int64_t end = HWY_MIN(members.cols, first + copies * width);
  for (int64_t r = 0; r < members.rows; ++r) {
    for (int64_t col = first; col < end; col += width) {
      sum += std::abs(static_cast<double>(members.row(r)[col]));
    }
  }
  return sum;
}

// kVectors * lanes columns of sums, all copies in the matrix: vectors of columns, the first at
// column `first`, each `step` further on. Several vectors at once read whole cache lines of a row.
template <int kVectors, typename T>
HWY_INLINE void SumColumns(MatrixView<const T> members, int64_t first, int64_t step, int64_t copies,
                           int64_t width, double* HWY_RESTRICT sums, hn::VFromD<D>& total) {
  const D d;
  const hn::Rebind<T, D> dt;
  const size_t lanes = hn::Lanes(d);
  hn::VFromD<D> sum[kVectors];
  for (auto& one : sum) one = hn::Zero(d);
  for (int64_t r = 0; r < members.rows; ++r) {
    for (int64_t t = 0; t < copies; ++t) {
      const T* from = members.data + r * members.row_stride + first + t * width;
      for (int64_t v = 0; v < kVectors; ++v) {
        const auto w = hn::Abs(hn::LoadU(dt, from + v * step));
        if constexpr (sizeof(T) == 8) {
          sum[v] = hn::Add(sum[v], w);
        } else {
          sum[v] = hn::Add(sum[v], hn::PromoteTo(d, w));
        }
      }
    }
  }
  for (size_t v = 0; v < kVectors; ++v) {
    total = hn::Add(total, sum[v]);
    hn::StoreU(sum[v], d, sums + v * lanes);
  }
}

// One row of sums, of the rows of one class: blocks of copies * width columns each give `width` of
// them. Returns whether all are finite.
template <typename T>
bool SumClass(MatrixView<const T> members, int64_t copies, int64_t width,
              double* HWY_RESTRICT sums) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t block = copies * width;
  auto total = hn::Zero(d);  // of finite floats, or doubles up to 2^900, it cannot overflow
  double rest_total = 0;
  int64_t col = 0;
  for (; width == lanes && col + 4 * block <= members.cols; col += 4 * block, sums += 4 * width) {
    SumColumns<4>(members, col, block, copies, width, sums, total);
  }
  for (; col < members.cols; col += block, sums += width) {
    const bool whole = col + block <= members.cols;
    int64_t i = 0;
    for (; whole && i + 4 * lanes <= width; i += 4 * lanes) {
      SumColumns<4>(members, col + i, lanes, copies, width, sums + i, total);
    }
    for (; whole && i + lanes <= width; i += lanes) {
      SumColumns<1>(members, col + i, lanes, copies, width, sums + i, total);
    }
    for (; i < width && col + i < members.cols; ++i) {
      sums[i] = SumColumn(members, col + i, copies, width);
      rest_total += sums[i];
    }
  }
  return hn::AllTrue(d, hn::IsFinite(hn::Add(total, hn::Set(d, rest_total))));
}

bool SumClassF32(MatrixView<const float> members, int64_t copies, int64_t width, double* sums) {
  return SumClass(members, copies, width, sums);
}
bool SumClassF64(MatrixView<const double> members, int64_t copies, int64_t width, double* sums) {
  return SumClass(members, copies, width, sums);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace {

HWY_EXPORT(SumClassF32);
HWY_EXPORT(SumClassF64);

bool sum_class(MatrixView<const float> members, int64_t copies, int64_t width, double* sums) {
  return HWY_DYNAMIC_DISPATCH(SumClassF32)(members, copies, width, sums);
}
bool sum_class(MatrixView<const double> members, int64_t copies, int64_t width, double* sums) {
  return HWY_DYNAMIC_DISPATCH(SumClassF64)(members, copies, width, sums);
}

// The largest power of two of copies of `group` bits that a word holds.
int copies_in_word(int group) {
  int copies = 1;
  while (2 * copies * group <= 64) copies *= 2;
  return copies;
}

}  // namespace

int64_t shared_length(int64_t length, const Pattern& pattern) {
  const int64_t whole = length / pattern.block() * pattern.group();
  return whole + std::min<int64_t>(length % pattern.block(), pattern.group());
}

template <typename T>
SharedSums::SharedSums(MatrixView<const T> block, const Pattern& pattern, bool transposable)
    : pattern_(pattern),
      transposable_(transposable),
      rows_(block.rows),
      cols_(block.cols),
      sum_rows_(shared_length(block.rows, pattern)),
      sum_cols_(transposable ? shared_length(block.cols, pattern) : block.cols),
      sums_(std::make_unique_for_overwrite<double[]>(static_cast<size_t>(sum_rows_ * sum_cols_))) {
  assert(rows_ <= pattern.block());
  const int64_t group = pattern.group();
  for (int64_t r = 0; r < sum_rows_; ++r) {
    const int64_t members = (rows_ - r + group - 1) / group;
    const MatrixView<const T> rows(block.row(r), members, cols_, group * block.row_stride);
    double* sums = sums_.get() + r * sum_cols_;
    finite_ &= transposable ? sum_class(rows, pattern.share(), group, sums)
                            : sum_class(rows, 1, std::max<int64_t>(cols_, 1), sums);
  }
}

// Every group of a row of the mask of sums, `share` times.
void SharedSums::repeat_columns(const Mask& shared, int64_t shared_row, uint64_t* to) const {
  const int group = pattern_.group(), block = pattern_.block();
  const int copies = std::min(copies_in_word(group), pattern_.share());
  uint64_t repeat = 0;  // times a group: adjacent copies of it
  for (int i = 0; i < copies; ++i) repeat |= uint64_t{1} << (i * group);
  int64_t col = 0, from = 0;
  if (64 % block == 0) {  // words of whole blocks
    const uint64_t ones = ~uint64_t{0} >> (64 - group);
    const int in_word = 64 / block * group;
    for (; col + 64 <= cols_; col += 64, from += in_word) {
      const uint64_t groups = shared.bits(shared_row, from, in_word);
      uint64_t word = 0;
      for (int g = 0; g < in_word; g += group) {
        word |= ((groups >> g) & ones) << (g * pattern_.share());
      }
      *to++ = word * repeat;
    }
  }
  MaskRowWriter writer(to);
  for (; col < cols_; col += block, from += group) {
    const int64_t end = std::min(cols_, col + block);
    const auto width = static_cast<int>(std::min<int64_t>(group, end - col));
    const uint64_t repeated = shared.bits(shared_row, from, width) * repeat;
    for (int64_t c = col; c < end; c += copies * group) {
      writer.append(repeated, static_cast<int>(std::min<int64_t>(copies * group, end - c)));
    }
  }
  writer.finish();
}

void SharedSums::expand(const Mask& shared, Mask& mask, int64_t first_row) const {
  const auto words = static_cast<size_t>((cols_ + 63) / 64);
  for (int64_t r = 0; r < sum_rows_; ++r) {
    uint64_t* first = mask.row_words(first_row + r);
    if (transposable_) {
      repeat_columns(shared, r, first);
    } else {
      std::copy_n(shared.row_words(r), words, first);
    }
    for (int64_t twin = r + pattern_.group(); twin < rows_; twin += pattern_.group()) {
      std::copy_n(first, words, mask.row_words(first_row + twin));
    }
  }
}

template SharedSums::SharedSums(MatrixView<const float>, const Pattern&, bool);
template SharedSums::SharedSums(MatrixView<const double>, const Pattern&, bool);

}  // namespace weft
#endif
