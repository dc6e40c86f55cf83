#include "weft/train/recipes/layer_state.h"

#include <cmath>

#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/mask/solver.h"
#include "weft/train/recipes/best_combination.h"
#include "weft/train/recipes/bi_mask.h"
#include "weft/train/recipes/permutation.h"
#include "weft/train/recipes/soft_threshold.h"

namespace weft {
namespace {

// Tells the uses of random numbers apart; a stream is (use, layer).
enum class RandomUse : uint64_t { kPermutation = 1 };

Rng rng_for(RandomUse use, const LayerState& state) {
  const Rng of_layer(state.seed, (static_cast<uint64_t>(use) << 32) |
                                     static_cast<uint64_t>(state.layer & 0xffffffff));
  return Rng(of_layer.bits(static_cast<uint64_t>(state.step)));
}

bool mask_is_due(const LayerInput& input, const LayerState& state) {
  if (!state.sparse()) return true;
  if (input.recipe->forward == ForwardPart::kFixed) return false;
  return state.step % input.recipe->schedule.mask_every == 0;
}

Mask best_mask(const LayerInput& input, bool transposable) {
  return find_mask(default_solver(transposable), input.weights, input.shape, input.pattern);
}

void update_union(const LayerInput& input, LayerState& state) {
  const double end =
      input.recipe->schedule.removal_end * static_cast<double>(input.total_steps);
  const bool ended = static_cast<double>(state.step - 1) >= end;  // one step ago already
  if (state.sparse() && ended) return;
  const double progress = end > 0.0 ? static_cast<double>(state.step) / end : 1.0;
  const BestCombination lbc(input.shape, input.pattern);
  if (state.alive.rows() == 0) state.alive = lbc.all_alive();
  lbc.remove(input.scores, progress, input.recipe->schedule.removal_power, state.alive);
  state.forward = lbc.mask(state.alive);
}

void update_forward(const LayerInput& input, LayerState& state) {
  switch (input.recipe->forward) {
    case ForwardPart::kDense: return;
    case ForwardPart::kUnion: return update_union(input, state);
    case ForwardPart::kTopN:
    case ForwardPart::kFixed:
    case ForwardPart::kSoft:
      if (mask_is_due(input, state)) state.forward = best_mask(input, false);
      break;
    case ForwardPart::kTransposable:
      if (mask_is_due(input, state)) state.forward = best_mask(input, true);
      break;
  }
  if (input.recipe->forward == ForwardPart::kSoft && !state.scaled) {
    state.beta = soft_threshold_scale(input.weights, state.forward, input.shape, input.pattern);
    state.scaled = true;
  }
}

void update_backward(const LayerInput& input, LayerState& state) {
  if (input.recipe->backward == BackwardPart::kSame) return;
  const int64_t every = input.recipe->schedule.permutation_every;
  if (state.permutation.empty()) state.permutation = identity_permutation(input.shape.outs);
  if (every > 0 && state.step % every == 0) {
    improve_permutation(state.forward, input.pattern,
                        {input.recipe->permutation_search, input.recipe->permutation_goal, 0},
                        rng_for(RandomUse::kPermutation, state), state.permutation);
  }
  // Of the weights, not of what the soft threshold leaves of them: the order is the same, and ties
  // at zero do not arise.
  state.backward = backward_mask(input.weights, state.forward, input.shape, input.pattern,
                                 state.permutation);
}

}  // namespace

bool is_dense_step(const Recipe& recipe, int64_t step, int64_t total_steps) {
  if (recipe.forward == ForwardPart::kDense) return true;
  const auto total = static_cast<double>(total_steps);
  const auto head = static_cast<int64_t>(std::ceil(recipe.schedule.dense_head * total));
  const auto tail = static_cast<int64_t>(std::floor(recipe.schedule.dense_tail * total));
  return step < head || (tail > 0 && step >= total_steps - tail);
}

void bring_up_to_date(const LayerInput& input, LayerState& state) {
  if (is_dense_step(*input.recipe, state.step, input.total_steps)) {
    state.forward = Mask();
    state.backward = Mask();
  } else {
    update_forward(input, state);
    update_backward(input, state);
  }
  state.begun = true;
}

bool values_are_weights(const Recipe& recipe) { return recipe.forward != ForwardPart::kSoft; }

void forward_values(const LayerInput& input, const LayerState& state, float* out) {
  if (!values_are_weights(*input.recipe)) {
    soft_threshold(input.weights, state.forward, input.shape, input.pattern, state.beta, out);
    return;
  }
  const int64_t cols = input.shape.cols();
  parallel_for(input.shape.outs, [&](int64_t row) {
    for (int64_t col = 0; col < cols; ++col) {
      const int64_t at = row * cols + col;
      out[at] = state.forward.at(row, col) ? input.weights[at] : 0.0f;
    }
  });
}

}  // namespace weft
