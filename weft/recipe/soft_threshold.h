// The soft forward part of S-STE (methods: Hu 2024): continuous where a hard mask jumps.
//
//   τ      = the (group − keep)-th smallest |w| of a group, the largest that is dropped
//   S(w)_i = sign(w_i) · max(|w_i| − τ, 0)
//   W̃      = β · S(W)
//   β      = <W, S(W)> / ||S(W)||²      once, after initialisation; then frozen
//
// Shared by a cell of rows, with s_i the cell's sum of |w| at i and τ taken of the s_i:
//
//   S(w)_i = w_i · max(0, 1 − τ / s_i)
//
// At most `keep` of a group are not zero, fewer at ties: that is how the mask changes without a
// jump. |S(a) − S(b)| <= 2 |a − b| in the largest entry, 2 · share |a − b| in a cell. With
// keep = group τ is 0 and β is 1.
// Straight through: dW := dW̃, without β and without the Jacobian of S.
#pragma once

#include <span>

#include "weft/core/mask.h"
#include "weft/recipe/grouping.h"
#include "weft/recipe/part.h"

namespace weft {

// The masks are those of top-n.
extern const ForwardPart kSoftPart;

// mask: of the `keep` largest of each group (of the sums of a cell, whose rows are those that stand
// in its places, if there is a row order). out: [outs, cols], zero
// outside the mask.
template <typename T>
void soft_threshold(const T* weights, const Mask& mask, const WeightShape& shape,
                    const Pattern& pattern, double beta, T* out,
                    std::span<const int64_t> row_order = {});

// Does not depend on the number of threads. 1 where S(W) is zero everywhere.
double soft_threshold_scale(const float* weights, const Mask& mask, const WeightShape& shape,
                            const Pattern& pattern, std::span<const int64_t> row_order = {});

}  // namespace weft
