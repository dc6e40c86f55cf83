// Row orders: permutations of outputs, so that outputs that share a pattern are similar.
//
// Place p holds output order[p] (core/row_order.h). The pattern shares by
// places (Pattern), so an order says which outputs form a cell. It is the idea of Bi-Mask (Zhang
// 2023), which permutes outputs for the backward mask, applied to sharing. Empty: not permuted.
//
//   maximise   Σ over cells C, groups G   top-keep over i in G of  Σ over o in C |w_oi|
//
// which is what the best shared mask retains. A transposable shared mask repeats one tile over
// columns too; of it the same goal is used on columns summed over those that share, a surrogate (an
// upper bound, as if rows were chosen without regard to columns).
//
// The search:
//   clusters  if there is no order to begin with: the outputs nearest to the first one that is left
//             make a cell, by the bits that their own N:M masks have in common
//   swaps     rounds in which cells meet in random pairs. Each output of a pair has a leaning, what
//             it would gain under the other cell's mask; those that lean most are exchanged, one
//             for one, where that makes the goal larger
//
// It is a local search, without a bound. It never returns an order whose mask (find_mask) retains
// less than that of where it began. A pure function of weights and options: seeded, independent of
// the number of threads; of outputs that are equally near, the first.
//
// Cost, in reads of the weights: about four to prepare, three a round, and two searches for a mask
// at the end. Clusters look at 1024 bits of at most 4096 outputs per cell. Memory: a copy of |w|,
// and another while masks are found.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/rng.h"
#include "weft/core/row_order.h"
#include "weft/core/weight_shape.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"

namespace weft {

struct RowOrderOptions {
  Rng rng{0};
  int rounds = 64;
  std::span<const int64_t> start;  // first order; empty: the identity, or clusters if better
};

// The identity where nothing is shared (share 1). weights: [outs, cols].
// Throws UnusableWeightError like find_mask.
std::vector<int64_t> find_row_order(const float* weights, const WeightShape& shape,
                                    const Pattern& pattern, bool transposable,
                                    const RowOrderOptions& options);

// rows: [outs, cols] -> row p of the result is row order[p].
template <typename T>
std::vector<T> in_row_order(const T* rows, const WeightShape& shape,
                            std::span<const int64_t> order);
Mask in_row_order(const Mask& mask, std::span<const int64_t> order);
// The reverse: row order[p] of the result is row p.
Mask undo_row_order(const Mask& mask, std::span<const int64_t> order);

// The mask of the weights as stored, whose places share. With an empty order find_mask itself.
template <typename T>
Mask find_mask(const Solver& solver, const T* weights, const WeightShape& shape,
               const Pattern& pattern, std::span<const int64_t> order);

}  // namespace weft
