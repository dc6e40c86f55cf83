#include "weft/mask/sharing.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace weft {

int64_t shared_length(int64_t length, const Pattern& pattern) {
  const int64_t whole = length / pattern.block() * pattern.group();
  return whole + std::min<int64_t>(length % pattern.block(), pattern.group());
}

int64_t shared_index(int64_t index, const Pattern& pattern) {
  return index / pattern.block() * pattern.group() + index % pattern.block() % pattern.group();
}

template <typename T>
SharedSums::SharedSums(MatrixView<const T> block, const Pattern& pattern, bool transposable)
    : pattern_(pattern),
      transposable_(transposable),
      rows_(block.rows),
      cols_(block.cols),
      sum_rows_(shared_length(block.rows, pattern)),
      sum_cols_(transposable ? shared_length(block.cols, pattern) : block.cols),
      sums_(static_cast<size_t>(sum_rows_ * sum_cols_)) {
  assert(rows_ <= pattern.block());
  for (int64_t r = 0; r < rows_; ++r) {
    double* sum_row = sums_.data() + shared_index(r, pattern_) * sum_cols_;
    for (int64_t c = 0; c < cols_; ++c) {
      sum_row[sum_col(c)] += std::abs(static_cast<double>(block.row(r)[c]));
    }
  }
}

int64_t SharedSums::sum_col(int64_t col) const {
  return transposable_ ? shared_index(col, pattern_) : col;
}

void SharedSums::expand(const Mask& shared, Mask& mask, int64_t first_row) const {
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < cols_; ++c) {
      if (shared.at(shared_index(r, pattern_), sum_col(c))) mask.set(first_row + r, c, true);
    }
  }
}

template SharedSums::SharedSums(MatrixView<const float>, const Pattern&, bool);
template SharedSums::SharedSums(MatrixView<const double>, const Pattern&, bool);

}  // namespace weft
