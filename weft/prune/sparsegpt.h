// SparseGPT (Frantar and Alistarh 2023) for N:M: columns are pruned from left to right, and what a
// pruned weight did to the output is made up for by the columns to its right.
//
//   H = G + damping · mean diagonal        H⁻¹ = Uᵀ U, U upper triangular
//   at a slab of columns: the mask that loses the least Σ (w_c / U_cc)²
//   then, column by column:  e = (w_c − x_c) / U_cc     w_{c..} −= e U_{c, c..}
//
// A slab is what one mask is chosen for: a group of columns, or share · group of them where a
// transposable pattern shares columns. A convolution is taken tap by tap, so that groups lie side
// by side. Weights that are zero stay so.
//
// One pass, no claim to be optimal: least_squares on the same support is never worse. Cost: about
// rows cols² + cols³ flops in double. Memory: three matrices [cols, cols], two [rows, cols].
#pragma once

#include <span>

#include "weft/core/matrix_view.h"
#include "weft/prune/support.h"

namespace weft {

struct SparseGptOptions {
  Pattern pattern{2, 4};
  bool transposable = false;
  std::span<const double> row_scale;  // see SupportOptions
  double damping = 0.01;              // of the mean of the diagonal, as in the paper
};

// weights: [shape.outs, shape.cols()]; g: [cols, cols]. out: the pruned and compensated weights.
// Returns their support. Throws Error if H is not positive definite.
Mask sparsegpt(const double* weights, const WeightShape& shape, MatrixView<const double> g,
               const SparseGptOptions& options, double* out);

}  // namespace weft
