// Zeros stay zero: the part of a mask within the non-zero weights.
//
//   found ∧ (w ≠ 0), and in a tile that obeys the pattern along both axes already, w ≠ 0 itself
//
// A tile is what a transposable mask is found for: pattern.block() rows and inputs of one tap.
// Transposable solvers find full masks, and not every sparser mask is part of a full one, so
// weights that obey would be lost:
//
//   0 1 1 0
//   1 0 1 0     2:4 along both axes; but the columns that a full mask has left for the last row are
//   1 1 0 0     one, the fourth, and it needs two
//   0 0 0 0
//
// Masks along one axis need no such care: the largest of a group include all that are not zero, if
// they are few enough.
#pragma once

#include <span>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"

namespace weft {

// nonzero, found: [shape.outs, shape.cols()], in places if there is a row order (row_order.h).
Mask mask_within(const Mask& nonzero, const Mask& found, const WeightShape& shape,
                 const Pattern& pattern);

}  // namespace weft
