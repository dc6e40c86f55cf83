// When a recipe is dense, when its masks and orders are found again, and how far its removal of
// candidates has come. Steps are those of the optimiser, from 0; shares are of the total, a head
// rounded up to whole steps and a tail rounded down.
//
//   step   0 ......... head ......................... total − tail ....... total
//          dense       sparse                         dense
#pragma once

#include "weft/recipe/recipe.h"

namespace weft {

// Whether a step is dense. Always, for a recipe without a sparse forward operand.
bool is_dense_step(const Recipe& recipe, int64_t step, int64_t total_steps);

// Steps of the dense head.
int64_t dense_head_steps(const Recipe& recipe, int64_t total_steps);

// t / t_f of lbc, counted from the end of the dense head; 1 or more: one candidate is left, and
// nothing changes any more.
double removal_progress(const Recipe& recipe, int64_t step, int64_t total_steps);

// Steps from one mask to the next; 0: it is found once. Always 1 for masks that are not found by
// magnitude. With kAuto it is 1 for masks that cost next to nothing, and for a transposable mask
// the least interval at which finding it takes at most 2 % of a step:
//
//   interval = ⌈ solver's ns per weight (mask/solver.h) / (0.02 · 65 ns) ⌉
//
// A step takes 65 ns per weight: 443 to 470 ms of a block with 7 million weights at 2:4, 2048
// tokens and two threads (`weft bench step`, docs/speed.md). The solver's time is that of one
// thread, so with two it is within the 2 % from 1024 tokens on. By exact that is 1 at groups of
// four (0.5 % of the step), 16 at 4:8, 21 at 8:16, 45 at 16:32. A constant, not a measurement of
// the day: a run repeats to the bit on any machine.
int64_t mask_interval(const Recipe& recipe, const Pattern& pattern);

// Whether a multiple of `every` is in (last, step]: work that is due every `every` steps and was
// last checked in step `last` is due.
bool comes_due(int64_t every, int64_t last, int64_t step);

// Whether a search for a row order is due: until order_end, because a new order changes many masks
// at once, and weights need the rest of the run to follow. Without a total there is no end.
bool is_order_step(const Recipe& recipe, int64_t last, int64_t step, int64_t total_steps);

}  // namespace weft
