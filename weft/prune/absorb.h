// Mean absorption (Hubara et al. 2021): what a group loses is spread evenly over what it keeps.
//
//   x_i = w_i + (Σ of the pruned w of the group) / (number kept)      so that the group's sum stays
//
// Right for inputs that are all alike, and only then: it can do harm, and weft reports whether it
// did. adaprune begins with it.
#pragma once

#include "weft/core/mask.h"
#include "weft/core/weight_shape.h"

namespace weft {

// weights, out: [shape.outs, shape.cols()]. A group that keeps nothing stays zero.
void absorb_means(const double* weights, const WeightShape& shape, int group, const Mask& support,
                  double* out);

}  // namespace weft
