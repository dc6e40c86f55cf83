// Row-shared patterns: sum |w| over what shares, solve once, repeat the mask.
//
// Within a block of share * group rows, rows equal modulo group share; a transposable mask shares
// columns in the same way, within blocks of share * group columns (see Pattern). A block cut short
// by the edge has fewer members in some or all of its classes, and at most min(group, rows)
// classes.
//
//   2:4x2, rows:  r, r+4 -> sum row r        columns (transposable):  c, c+4 -> sum column c
//
// Sums are in double, and each is one chain of additions, row by row and from left to right, so
// that they are the same on every instruction set. Cost: about two reads of the weights.
#pragma once

#include <memory>

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"

namespace weft {

// Classes that `length` consecutive rows (or columns) fall into.
int64_t shared_length(int64_t length, const Pattern& pattern);

class SharedSums {
 public:
  // block: at most pattern.block() rows.
  template <typename T>
  SharedSums(MatrixView<const T> block, const Pattern& pattern, bool transposable);

  MatrixView<const double> view() const { return {sums_.get(), sum_rows_, sum_cols_}; }

  // False if and only if one of the weights is not.
  bool finite() const { return finite_; }

  // Repeats the mask of the sums over the rows of `mask` from `first_row` on.
  void expand(const Mask& shared, Mask& mask, int64_t first_row) const;

 private:
  void repeat_columns(const Mask& shared, int64_t shared_row, uint64_t* to) const;

  Pattern pattern_;
  bool transposable_;
  int64_t rows_, cols_;
  int64_t sum_rows_, sum_cols_;
  std::unique_ptr<double[]> sums_;
  bool finite_ = true;
};

}  // namespace weft
