// The dense product in double, for what must not lose digits: Gram matrices, their factors,
// residuals.
//
//   c += alpha · a b        a: [m, k]   b: [k, n]   c: [m, n], row-major, the caller's; no overlap
//
// oneDNN has no product in double, and Debian's OpenBLAS takes many CPUs for a Prescott; this one
// reaches about three quarters of the FMA peak (AVX2, two threads; `weft bench convert` shows what
// it makes of it). The order of additions is a function of the shape: the result does not depend on
// the number of threads. Allocates half a megabyte per thread.
#pragma once

#include "weft/core/matrix_view.h"

namespace weft {

void add_product(double alpha, MatrixView<const double> a, MatrixView<const double> b,
                 MatrixView<double> c);

}  // namespace weft
