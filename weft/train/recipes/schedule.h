// When a recipe is dense, how far its removal of candidates has come, and whether row orders still
// change. Steps are those of the
// optimiser, from 0; shares are of the total.
//
//   step   0 ......... head ......................... total − tail ....... total
//          dense       sparse                         dense
#pragma once

#include "weft/train/recipes/recipe.h"

namespace weft {

// Whether a step is dense. Always, for a recipe without a sparse forward operand.
bool is_dense_step(const Recipe& recipe, int64_t step, int64_t total_steps);

// t / t_f of lbc, counted from the end of the dense head; 1 or more: one candidate is left, and
// nothing changes any more.
double removal_progress(const Recipe& recipe, int64_t step, int64_t total_steps);

// Whether a search for a row order is due: until order_end, because a new order changes many masks
// at once, and weights need the rest of the run to follow. (Without an end the last one could come
// after the last step, and what was tried so lost more than sharing did.) Without a total there is
// no end.
bool is_order_step(const Recipe& recipe, int64_t step, int64_t total_steps);

}  // namespace weft
