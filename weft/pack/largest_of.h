// The magnitude mask of some rows of a matrix, for packers that prune as they go.
#pragma once

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"

namespace weft {

// Rows [first, first + rows) of w, in whole blocks of pattern.block() rows: bit (r, c) of the
// result is weight (first + r, c). Groups restart after every `segment` columns. Every group is
// full. Throws UnusableWeightError that names the row of w.
Mask largest_of(MatrixView<const float> w, int64_t first, int64_t rows, const Pattern& pattern,
                int64_t segment);

}  // namespace weft
