// How good a mask is: the magnitude it keeps, and a bound on what any mask of its kind could keep.
#pragma once

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"

namespace weft {

// Sums of |w| in double, row by row in a fixed order: the same for any number of threads.
struct Retained {
  double kept = 0;
  double total = 0;

  double fraction() const { return total > 0 ? kept / total : 1.0; }
  Retained& operator+=(const Retained& other);
};
template <typename T>
Retained retained(const T* weights, const WeightShape& shape, const Mask& mask);

// What the largest half of the weights retains, wherever they are: no structure.
template <typename T>
Retained retained_by_largest_half(const T* weights, const WeightShape& shape);

// An upper bound on the magnitude that any mask with at most `keep` per row and column of every
// tile can keep, from a dual solution per tile (u, v >= 0):
//
//   keep (sum u_r + sum v_c) + sum max(0, |w_rc| - u_r - v_c)
//
// by coordinate descent: u given v is a selection in every row, v given u one in every column.
// Certified whatever the number of sweeps. On Gaussian tiles it is within 1 % of the optimum.
// Throws UnusableWeightError (solver.h) like find_mask.
template <typename T>
double transposable_bound(const T* weights, const WeightShape& shape, const Pattern& pattern);

}  // namespace weft
