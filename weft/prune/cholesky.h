// Cholesky factors in double, in blocks, in place of LAPACK's: the same for any number of threads.
#pragma once

#include <optional>
#include <vector>

#include "weft/core/matrix_view.h"

namespace weft {

// a = l lᵀ, l lower triangular; only the lower triangle of `a` is read, and l takes its place, with
// zeros above. Returns the first column whose pivot is not positive, where it stopped; nothing if a
// is positive definite. Cost: n³ / 3 flops.
std::optional<int64_t> cholesky(MatrixView<double> a);

// The inverse of a lower triangular matrix, in its place. Cost: 2 n³ / 3 flops, half of them with
// zeros.
void invert_lower(MatrixView<double> l);

}  // namespace weft
