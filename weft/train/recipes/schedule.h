// When a recipe is dense, and how far its removal of candidates has come. Steps are those of the
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

}  // namespace weft
