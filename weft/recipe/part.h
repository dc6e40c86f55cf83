// The parts that recipes are made of, as data.
//
// A part is a row: its name, what is true of it, and its functions. Nothing outside of this folder
// asks which part a recipe has; it asks what is true of it (`forward->transposable`) or calls it
// (`forward->find(...)`). So a new part is a file with its formula and one row, either in the table
// of parts.cpp or added by a user of the library:
//
//   const ForwardPart mine = {.name = "mine", .find = find_mine};
//   add_part(mine);                                  before the first recipe that names it
//   Recipe::parse("sr-ste+forward=mine")
//
// A function that may be left out says what then happens. A part keeps its state in LayerState, and
// reads its settings from Recipe: a part that needs new ones adds a field there.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"
#include "weft/estimate/mvue.h"

namespace weft {

struct LayerInput;
struct LayerState;
struct Recipe;

// Settings of a recipe ("removal_end") that a part reads. One that no part of a recipe reads is
// refused.
using SettingNames = std::span<const std::string_view>;

// Figures of a layer that only some parts have, for its telemetry: {"beta", 1.3}.
struct Figure {
  std::string_view name;
  double value = 0.0;
};

// Scores that an optimiser trains besides the weights: [cells, groups, candidates].
struct ScoreRow {
  struct Shape {
    int64_t cells = 0, groups = 0, candidates = 0;
    int64_t size() const { return cells * groups * candidates; }
  };
  Shape (*shape)(const WeightShape& weights, const Pattern& pattern);
  void (*first)(const WeightShape& weights, const Pattern& pattern, std::span<float> scores);
  // d_scores: their gradient, from that of the operand; dw: [outs, cols].
  void (*gradient)(const LayerInput& input, const LayerState& state, const float* dw,
                   float* d_scores);
  void (*gradient_in_double)(const LayerInput& input, const LayerState& state,
                             const double* weights, const double* dw, double* d_scores);
  // Whether they still change anything. Once they do not, the optimiser leaves them alone.
  bool (*are_trained)(const Recipe& recipe, int64_t step, int64_t total_steps);
};

// What Y = X W̃ᵀ multiplies with: a mask, and the values under it.
struct ForwardPart {
  std::string_view name;
  bool dense = false;         // there is no mask: W̃ = W
  bool transposable = false;  // the mask is N:M along outputs too
  // The mask is what a solver finds in the magnitudes of the weights. So weights that grow come
  // back into it: a decay steers it, rows may share by an order, and mask_every=0 keeps the first
  // one.
  bool by_magnitude = false;
  std::string_view masks_of = {};  // the part that has the same masks; empty: this one
  const ScoreRow* scores = nullptr;
  SettingNames settings = {};

  // state.forward from the weights, the scores and the state, as they are at state.step.
  void (*find)(const LayerInput& input, LayerState& state) = nullptr;
  // W̃ [outs, cols], zero outside the mask. Null: the weights under the mask.
  void (*values)(const LayerInput& input, const LayerState& state, float* out) = nullptr;
  // The same in double, for adapters that compute in it. There if `values` is.
  void (*values_in_double)(const LayerInput& input, const LayerState& state, const double* weights,
                           double* out) = nullptr;
  // Whether the mask keeps more than the pattern at this step. Null: never.
  bool (*keeps_more)(const Recipe& recipe, int64_t step, int64_t total_steps) = nullptr;
  // Empty, or why a recipe with this part makes no sense. Null: it always does.
  std::string (*objection)(const Recipe& recipe, const Pattern& pattern) = nullptr;
  std::string (*schedule_text)(const Recipe& recipe) = nullptr;  // null: that of its masks
  // input.weights may be null.
  void (*add_figures)(const LayerInput& input, const LayerState& state,
                      std::vector<Figure>& figures) = nullptr;
};

// What dX = G W̃' multiplies with: the forward operand under a mask of its own, or all of it.
struct BackwardPart {
  std::string_view name;
  // Groups run along outputs, in an order that the part chooses: there must be a whole group of
  // them, and groups of channels would be mixed.
  bool permutes_outputs = false;
  SettingNames settings = {};

  // state.backward, from `values` [outs, cols]: those of the forward operand, where state.forward
  // keeps them. Entries outside of state.forward are dropped afterwards. Null: the same as forward.
  void (*find)(const LayerInput& input, const float* values, LayerState& state) = nullptr;
  // Before the first training pass of a step: work that is due every few steps.
  bool (*is_refresh_due)(const LayerInput& input, const LayerState& state) = nullptr;
  void (*refresh)(const LayerInput& input, LayerState& state) = nullptr;
  std::string (*objection)(const Recipe& recipe, const Pattern& pattern) = nullptr;
  std::string (*schedule_text)(const Recipe& recipe) = nullptr;  // empty: nothing to say
  void (*set_defaults)(Recipe& recipe) = nullptr;                // when a recipe is given this part

  bool same() const { return find == nullptr; }
};

// How dW = Gᵀ X is estimated, and which entries of it count.
struct GradientPart {
  std::string_view name;
  bool masked = false;                            // only what the forward operand keeps
  std::optional<Sampler> sampler = std::nullopt;  // of Gᵀ along tokens; nothing: all of it
  std::string (*objection)(const Recipe& recipe, const Pattern& pattern) = nullptr;
};

// What pulls pruned weights to zero, once per optimiser step and after clipping.
template <typename T>
struct DecayCall {
  const Mask& mask;  // of the forward operand
  double lambda = 0.0;
  double learning_rate = 0.0;
  T* weights = nullptr;   // [outs, cols]
  T* gradient = nullptr;  // of the weights
};
struct DecayPart {
  std::string_view name;
  void (*apply)(const DecayCall<float>& call) = nullptr;  // null: there is none
  // The same in double. There if `apply` is.
  void (*apply_in_double)(const DecayCall<double>& call) = nullptr;
  // λ is not given, but found by who trains (lambda_search.h), in place of this part.
  bool finds_lambda = false;

  bool none() const { return apply == nullptr; }
};

// All parts of a kind; those that were added come last.
std::vector<const ForwardPart*> forward_parts();
std::vector<const BackwardPart*> backward_parts();
std::vector<const GradientPart*> gradient_parts();
std::vector<const DecayPart*> decay_parts();

// The part of that name; throws Error that names the parts there are.
const ForwardPart& forward_part(std::string_view name);
const BackwardPart& backward_part(std::string_view name);
const GradientPart& gradient_part(std::string_view name);
const DecayPart& decay_part(std::string_view name);

// Adds a copy of a part of a user. Throws Error if the name is taken or a function is missing. Not
// while another thread parses recipes. The names that it refers to must live as long as the
// program.
void add_part(const ForwardPart& part);
void add_part(const BackwardPart& part);
void add_part(const GradientPart& part);
void add_part(const DecayPart& part);

}  // namespace weft
