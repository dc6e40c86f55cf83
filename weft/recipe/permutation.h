// The order of outputs in which Bi-Mask groups them (bi_mask.h), chosen so that little is lost.
//
// With K kept entries in a group of outputs at one input, min(K, keep) stay. The goal is
//
//   kKept      Σ min(K, keep)        entries that stay, over all groups and inputs
//   kEligible  #{K <= keep}          blocks that lose nothing
//
// Searches, both seeded, neither worse than where it began:
//   kRandom    the paper's: the best of `tries` random permutations, and the present one
//   kSwap      hill climbing: `tries` times two outputs of different groups change places if that
//              is better. Much better on small layers (docs/recipes.md has the gain per shape).
//
// Cost: a try is O(outs · cols) at random, O(cols) by swaps.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/rng.h"
#include "weft/recipe/recipe.h"

namespace weft {

std::vector<int64_t> identity_permutation(int64_t outs);
bool is_permutation(std::span<const int64_t> permutation);

struct PermutationOptions {
  PermutationSearch search = PermutationSearch::kSwap;
  PermutationGoal goal = PermutationGoal::kKept;
  int64_t tries = 0;  // 0: 100 at random, as the paper; eight per output by swaps
};

// forward: [outs, cols].
int64_t permutation_value(const Mask& forward, const Pattern& pattern, PermutationGoal goal,
                          std::span<const int64_t> permutation);

void improve_permutation(const Mask& forward, const Pattern& pattern,
                         const PermutationOptions& options, const Rng& rng,
                         std::vector<int64_t>& permutation);

}  // namespace weft
