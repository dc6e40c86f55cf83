// Row-shared patterns: sum |w| over what shares, solve once, repeat the mask.
//
// Within a block of share * group rows, rows equal modulo group share; a transposable mask shares
// columns in the same way, within blocks of share * group columns (see Pattern). A block cut short
// by the edge has fewer members in some or all of its classes, and at most min(group, rows)
// classes.
//
//   2:4x2, rows:  r, r+4 -> sum row r        columns (transposable):  c, c+4 -> sum column c
#pragma once

#include <vector>

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"

namespace weft {

// Classes that `length` consecutive rows (or columns) fall into, and the class of one of them.
int64_t shared_length(int64_t length, const Pattern& pattern);
int64_t shared_index(int64_t index, const Pattern& pattern);

class SharedSums {
 public:
  // block: at most pattern.block() rows.
  template <typename T>
  SharedSums(MatrixView<const T> block, const Pattern& pattern, bool transposable);

  MatrixView<const double> view() const { return {sums_.data(), sum_rows_, sum_cols_}; }

  // Repeats the mask of the sums over the rows of `mask` from `first_row` on.
  void expand(const Mask& shared, Mask& mask, int64_t first_row) const;

 private:
  int64_t sum_col(int64_t col) const;

  Pattern pattern_;
  bool transposable_;
  int64_t rows_, cols_;
  int64_t sum_rows_, sum_cols_;
  std::vector<double> sums_;
};

}  // namespace weft
