// Least squares on a support: the weights that come closest to what the dense layer puts out.
//
//   min over x, zero outside the support S:   (x − w) G (x − w)ᵀ        one such problem per row
//
// Its normal equations G_SS x_S = (w G)_S are solved by conjugate gradients, preconditioned by the
// diagonal, for many rows at once: then the products with G, all of the cost, are matrix products.
// They are in float, unless the tolerance is below 1e-5; sums, residuals and the solution are in
// double, and the residual is computed again in double before the result is accepted (iterative
// refinement).
//
// The error of a row falls with every step, but for rounding; a caller that must not end above the
// start compares (convert_layer does). Directions that no sample has (dead inputs, fewer samples
// than weights) stay as they were at the start: G may be singular.
//
// A row is done when what is left to gain is at most `tolerance` of what has been gained, by the
// estimate of Strakoš and Tichý (the gain of the last few steps, which bounds the error of those
// before it from below), or after `iterations` steps. Cost: 2 rows cols² flops per step.
#pragma once

#include <cstdint>

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"

namespace weft {

struct LeastSquaresOptions {
  double tolerance = 1e-3;
  int64_t iterations = 200;
};

struct LeastSquaresReport {
  int64_t most_steps = 0;       // of any row
  int64_t unfinished_rows = 0;  // that ran into the limit
};

// w: [rows, cols]; g: [cols, cols]; x: [rows, cols], the start, which must be zero outside the
// support, and the solution.
LeastSquaresReport least_squares(MatrixView<const double> w, MatrixView<const double> g,
                                 const Mask& support, const LeastSquaresOptions& options,
                                 MatrixView<double> x);

}  // namespace weft
