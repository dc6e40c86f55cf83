// Recipe: a training method, as a composition of parts. Every paper is one row of a table.
//
// part.h says what a part is.
//
//   forward operand    what Y = X W̃ᵀ multiplies with
//   backward operand   what dX = G W̃ multiplies with
//   gradient           how dW = Gᵀ X is estimated, and which entries of it count
//   decay              what pulls pruned weights to zero
//   schedule           when masks are found, and which part of the run is dense
//
// A user may compose what no paper has:
//
//   Recipe::parse("s-ste+backward=bi-mask")   a named recipe, and parts in place of its own
//
// The formulas stand in the files of the parts; docs/recipes.md has them all. Steps are those of
// the optimiser, counted from 0; shares are of the total number of steps.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "weft/core/pattern.h"
#include "weft/mask/solver.h"
#include "weft/recipe/part.h"

namespace weft {

struct Schedule {
  static constexpr int64_t kAuto = -1;

  // Steps from one mask to the next. 0: found once, when sparse training begins, and fixed. kAuto:
  // as often as it pays (mask_interval in schedule.h).
  int64_t mask_every = kAuto;
  int64_t permutation_every = 0;  // steps from one search for a permutation to the next; 0: none
  int64_t order_every = 0;     // steps from one search for a row order to the next; 0: no row order
  double order_end = 0.25;     // share of the steps after which a row order stays as it is
  double dense_head = 0.0;     // share of the steps, at the beginning, that is dense
  double dense_tail = 0.0;     // share of the steps, at the end, that is dense
  double removal_end = 0.5;    // share of the steps after which one subset is left (lbc: t_f)
  double removal_power = 3.0;  // of the polynomial by which subsets are removed until then
};

// How a permutation of outputs is looked for (permutation.h).
enum class PermutationSearch : uint8_t { kSwap, kRandom };
enum class PermutationGoal : uint8_t {
  kKept,      // entries that the backward operand keeps
  kEligible,  // blocks of a column that lose nothing
};

struct Recipe {
  std::string name;
  // Never null (part.h).
  const ForwardPart* forward = nullptr;
  const BackwardPart* backward = nullptr;
  const GradientPart* gradient = nullptr;
  const DecayPart* decay = nullptr;
  double lambda = 2e-4;  // of the decay
  Schedule schedule;
  const Solver* solver = nullptr;  // of a transposable mask; null: the default one
  // Of the sampled gradient; nothing: that of the weights. "gradient=mvue@2:4"
  std::optional<Pattern> gradient_pattern;
  PermutationSearch permutation_search = PermutationSearch::kSwap;
  PermutationGoal permutation_goal = PermutationGoal::kKept;
  // Adam's second moment of the weights stays as it is while the layer is sparse (STEP, Lu et al.
  // 2023): the gradients of masked weights would spoil it. It is learned in the dense head.
  bool frozen_moment = false;
  bool fp8 = false;  // operands of all three products rounded to FP8 (estimate/fp8.h)

  // A name of the table, or of a paper's settings (paper_settings.h), then parts joined by "+":
  // "sr-ste+lambda=6e-5+gradient=mvue+fp8", "t-sr-ste@paper+mask_every=10".
  // Throws Error and names what is known.
  static Recipe parse(std::string_view text);

  // Throws Error with the reason if the parts do not make sense together, or with this pattern.
  void check(const Pattern& pattern) const;

  // Whether its λ is still to be found (decay=auto): no layer trains with it until then.
  bool finds_lambda() const { return decay->finds_lambda; }
  // Whether the schedule is made of shares, so that the number of steps must be known.
  bool needs_total_steps() const;
  // Whether the mask is found once, by magnitude.
  bool has_fixed_mask() const { return schedule.mask_every == 0 && forward->by_magnitude; }
  // What finds masks by magnitude.
  const Solver& mask_solver() const {
    return solver != nullptr ? *solver : default_solver(forward->transposable);
  }
  bool is_dense() const { return forward->dense; }
  bool samples_gradient() const { return gradient->sampler.has_value(); }
  // Of a sample of the gradient, in a layer with weights of this pattern.
  Pattern sample_pattern(const Pattern& weights) const {
    return gradient_pattern.value_or(weights);
  }
  // Whether one of its parts reads this setting ("removal_end").
  bool reads(std::string_view setting) const;
  // The same masks going forward, and none of its own going backward.
  Recipe without_backward_mask() const;
};

// "sr-ste@1:4": a recipe, and the pattern of its weights. A pattern right after a gradient part is
// of that part: "s-ste+gradient=mvue@2:4@1:8" samples 2:4 under weights at 1:8. "t-sr-ste@paper" is
// the name of a recipe: "t-sr-ste@paper@2:4".
struct RecipeAndPattern {
  std::string_view recipe;
  std::optional<std::string_view> pattern;
};
RecipeAndPattern split_pattern(std::string_view text);

// "sr-ste+decay=auto" with a λ that was found: "sr-ste+decay=gradient+lambda=0.003". A recipe that
// finds none is as it was.
std::string with_lambda(std::string_view recipe, double lambda);

// The named recipes, in the order of docs/recipes.md.
std::span<const Recipe> recipes();

// For tables.
std::string describe_schedule(const Recipe& recipe);
// Which of the three products has a sparse operand: "fwd, bwd_x, bwd_w".
std::string sparse_products(const Recipe& recipe);

}  // namespace weft
