// Mask diversity: how many masks a structure admits (Hubara et al. 2021, section 3).
//
//   unstructured, K kept of T     C(T, K)
//   N:M along inputs              C(M, N) per group
//   transposable                  A(M, N) per tile: the 0/1 matrices of M x M whose row and column
//                                 sums are all N
//
// The paper gives M! (M-1)! ... (M-N+1)! per transposable tile. That is right at N = 1 only: it
// over-counts at half density (144 instead of 90 at 2:4) and under-counts from 2:10 on. weft counts
// exactly and reports the paper's figure beside it, so labelled; docs/masks.md says what that does
// to the paper's argument.
//
// Groups and tiles cut short by the edge count as what they are (see tile.h); with sharing, what
// shares counts once. All figures are log2, so they add up over tiles and layers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"

namespace weft {

struct Diversity {
  double log2_unstructured = 0;  // with as many kept as the N:M structure keeps
  double log2_nm = 0;
  double log2_transposable = 0;
  double log2_transposable_paper = 0;
  bool transposable_exact = true;  // false: group too large to count; an asymptotic estimate
  int64_t weights = 0;

  Diversity& operator+=(const Diversity& other);
  // Of the paper's formula against the count.
  enum class Formula : uint8_t { kRight, kOverCount, kUnderCount };
  Formula paper_formula() const;
};

Diversity diversity(const WeightShape& shape, const Pattern& pattern);

// The table of the paper, counted: an 8 x 8 block, or one tile of a group that does not divide 8.
struct PaperBlock {
  Pattern pattern{2, 4};
  int64_t side = 8;
  Diversity counted;
};
std::vector<PaperBlock> paper_blocks();

// A(group, keep) in decimal digits, by a recurrence over column capacities: the state is how many
// columns still want 0, 1, 2 ... ones, and each row takes `keep` columns out of these classes.
// nullopt if that has too many states (about group 16 at half density is the largest; group 64 at
// keep 4).
std::optional<std::string> count_transposable(int group, int keep);

// The estimate of log2 A, C(g,k)^(2g) / C(g^2, gk) e^(-1/2) (Canfield, Greenhill and
// McKay) that is used where counting is out of reach: 0.05 of 184.5 bits too low at A(16, 8), and
// the difference falls as 1 / group.
double log2_transposable_estimate(int group, int keep);

}  // namespace weft
