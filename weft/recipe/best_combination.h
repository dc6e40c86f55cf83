// The union forward part of LBC (Zhang 2022): every subset of a group has a learnable score, and
// the lowest are removed step by step until one is left.
//
//   candidates Θ_i   all C = C(M, N) subsets of N of the M weights of a group
//   score α_i        learnt; begins at 1 / C(M−1, N−1), so that every weight has u = Σ α_i = 1
//   mask_m           1 if m is in a candidate that is alive
//   dα_i             Σ_{m in Θ_i} dW̃_m · W_m     if alive, else 0
//   alive(t)         1 + ceil((C − 1) · (1 − t / t_f)^p)     of each group
//
// Dense at the start, exactly N:M from t_f on. A candidate once removed stays so: what is alive is
// a bit of its own, not a score that happens to be zero (momentum moves such scores again).
//
// Large groups: C(16, 8) is 12870. Above kMaxSubsets candidates the score factorises: every weight
// has one, a subset's is the sum of its members', and what is alive are all subsets of the weights
// that are left. So weights are removed, the lowest first, until alive(t) subsets could not be left
// with one fewer; memory is one score per weight.
//
// Shared patterns have one set of scores per cell; its gradient is the sum over the rows.
// Groups cut short by the edge have candidates of their own; those with at most `keep` weights
// keep them all.
#pragma once

#include <span>
#include <vector>

#include "weft/core/mask.h"
#include "weft/recipe/grouping.h"
#include "weft/recipe/part.h"

namespace weft {

extern const ForwardPart kUnionPart;

constexpr int64_t kMaxSubsets = 256;  // of a group; 4:8 has 70, 2:16 has 120, 4:16 has 1820

class Candidates {
 public:
  // factorised: one candidate per weight.
  Candidates(int keep, int length, bool factorised);

  int count() const { return static_cast<int>(members_.size()); }
  // In increasing order of their words.
  uint64_t members(int candidate) const { return members_[static_cast<size_t>(candidate)]; }
  float first_score() const { return first_score_; }
  // progress = t / t_f in [0, 1]
  int alive(double progress, double power) const;

 private:
  int keep_;
  bool factorised_;
  double subsets_;  // C(length, keep)
  float first_score_;
  std::vector<uint64_t> members_;  // bit k: weight k of the group is in it
};

// Scores and what is alive are [cells, groups of a row, candidates()], in this order.
class BestCombination {
 public:
  BestCombination(const WeightShape& shape, const Pattern& pattern);

  int64_t cells() const { return grouping_.cells(); }
  int64_t groups() const { return grouping_.groups(); }
  int candidates() const { return std::max(whole_.count(), short_.count()); }
  int64_t scores() const { return cells() * groups() * candidates(); }

  void first_scores(std::span<float> scores) const;
  Mask all_alive() const;  // [cells * groups, candidates()]

  // Removes the lowest scores of each group; of equal ones the later. Never revives. Throws Error
  // if a score is not finite.
  void remove(std::span<const float> scores, double progress, double power, Mask& alive) const;
  // [outs, cols]: the weights that an alive candidate holds.
  Mask mask(const Mask& alive) const;
  // The mean number alive in a group.
  double mean_alive(const Mask& alive) const;

  // d_scores += the gradient, from that of the operand: dw, weights: [outs, cols].
  template <typename T>
  void add_score_gradients(const T* dw, const T* weights, const Mask& alive, T* d_scores) const;

 private:
  const Candidates& candidates_of(const Group& group) const {
    return group.length == grouping_.pattern().group() ? whole_ : short_;
  }

  Grouping grouping_;
  Candidates whole_;
  Candidates short_;  // of the last group of a row, if it is shorter
};

}  // namespace weft
