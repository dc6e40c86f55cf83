// The rows of scores of attention.h, between its products.
//
//   forward    e  = exp(s − max)                max and sum of each row
//   backward   p  = exp(s − max) / sum          ds = p ∘ (dp − Σ p ∘ dp)
//
// Row r has first + r · step scores, as many as columns at most; columns after them become 0. Rows
// are a multiple of kSoftmaxPad apart, and the pad may be written. exp is right to a few ulp. A
// NaN, an infinity above or nothing but those below make a whole row NaN.
#pragma once

#include "weft/core/matrix_view.h"

namespace weft {

constexpr int64_t kSoftmaxPad = 16;

// How many scores of each row count: under a causal mask each row has one more than the last.
struct Counts {
  int64_t first;  // of row 0
  int64_t step;   // 0 or 1
};

// With these of each row the backward pass has its probabilities again.
template <typename T>
struct RowStats {
  T* max;          // [rows]
  T* inverse_sum;  // [rows], 1 / Σ e

  RowStats from(int64_t row) const { return {max + row, inverse_sum + row}; }
};

// scores: [rows, cols], replaced by e.
void softmax_rows_forward(MatrixView<float> scores, Counts counts, RowStats<float> stats);

// scores: [rows, cols], replaced by p; gradients: [rows, cols], dp, replaced by ds.
void softmax_rows_backward(MatrixView<float> scores, MatrixView<float> gradients, Counts counts,
                           RowStats<const float> stats);

}  // namespace weft
