#include "weft/recipe/layer_state.h"

#include "weft/core/masked_copy.h"
#include "weft/core/rng.h"
#include "weft/recipe/best_combination.h"
#include "weft/recipe/bi_mask.h"
#include "weft/recipe/magnitude_masks.h"
#include "weft/recipe/permutation.h"
#include "weft/recipe/schedule.h"
#include "weft/recipe/soft_threshold.h"

namespace weft {
namespace {

// Tells the uses of random numbers apart; a stream is (use, layer).
enum class RandomUse : uint64_t { kPermutation = 1, kRowOrder = 2 };

Rng rng_for(RandomUse use, const LayerState& state) {
  const Rng of_layer(state.seed, (static_cast<uint64_t>(use) << 32) |
                                     static_cast<uint64_t>(state.layer & 0xffffffff));
  return Rng(of_layer.bits(static_cast<uint64_t>(state.step)));
}

void update_union(const LayerInput& input, LayerState& state) {
  const auto progress = [&](int64_t step) {
    return removal_progress(*input.recipe, step, input.total_steps);
  };
  if (state.sparse() && progress(state.step - 1) >= 1.0) return;  // it ended a step ago
  const BestCombination lbc(input.shape, input.pattern);
  if (state.alive.rows() == 0) state.alive = lbc.all_alive();
  lbc.remove(input.scores, progress(state.step), input.recipe->schedule.removal_power, state.alive);
  state.forward = lbc.mask(state.alive);
}

void freeze_beta(const LayerInput& input, LayerState& state) {
  if (input.recipe->forward != ForwardPart::kSoft || state.scaled) return;
  state.beta = soft_threshold_scale(input.weights, state.forward, input.shape, input.pattern,
                                    state.row_order);
  state.scaled = true;
}

void refresh_forward(const LayerInput& input, LayerState& state) {
  const bool begins = !state.sparse();
  if (input.recipe->forward == ForwardPart::kUnion) {
    if (begins) update_union(input, state);
    return;
  }
  const bool moved = is_order_due(input, state) &&
                     update_row_order(input, rng_for(RandomUse::kRowOrder, state), state);
  if (!begins && !moved && !is_mask_due(input, state)) return;
  find_magnitude_mask(input, state);
  freeze_beta(input, state);
}

bool is_permutation_due(const LayerInput& input, const LayerState& state) {
  const int64_t every = input.recipe->schedule.permutation_every;
  return input.recipe->backward == BackwardPart::kBiMask && every > 0 &&
         (state.permutation.empty() || comes_due(every, state.refreshed, state.step));
}

void refresh_permutation(const LayerInput& input, LayerState& state) {
  if (input.recipe->backward == BackwardPart::kSame) return;
  const bool due = is_permutation_due(input, state);
  if (state.permutation.empty()) state.permutation = identity_permutation(input.shape.outs);
  if (!due) return;
  improve_permutation(state.forward, input.pattern,
                      {input.recipe->permutation_search, input.recipe->permutation_goal, 0},
                      rng_for(RandomUse::kPermutation, state), state.permutation);
}

void update_backward(const LayerInput& input, LayerState& state) {
  if (input.recipe->backward == BackwardPart::kSame) return;
  // The largest of the operand, which along outputs are not the largest weights if every group has
  // lost a threshold of its own.
  std::vector<float> operand;
  const float* values = input.weights;
  if (!values_are_weights(*input.recipe)) {
    operand.resize(static_cast<size_t>(input.shape.outs * input.shape.cols()));
    forward_values(input, state, operand.data());
    values = operand.data();
  }
  state.backward =
      backward_mask(values, state.forward, input.shape, input.pattern, state.permutation);
}

}  // namespace

void bring_up_to_date(const LayerInput& input, LayerState& state) {
  if (!state.begun) {
    refresh(input, state);
    return;
  }
  if (!state.sparse()) return;
  if (input.recipe->forward == ForwardPart::kUnion) {
    update_union(input, state);
  } else if (follows_weights(input)) {
    find_magnitude_mask(input, state);
  }
  update_backward(input, state);
}

void refresh(const LayerInput& input, LayerState& state) {
  if (is_dense_step(*input.recipe, state.step, input.total_steps)) {
    state.forward = Mask();
    state.backward = Mask();
  } else if (is_refresh_due(input, state)) {
    refresh_forward(input, state);
    refresh_permutation(input, state);
    update_backward(input, state);
  }
  state.begun = true;
  state.refreshed = state.step;
}

bool is_refresh_due(const LayerInput& input, const LayerState& state) {
  const bool dense = is_dense_step(*input.recipe, state.step, input.total_steps);
  if (!state.begun || dense == state.sparse()) return true;
  return !dense && (is_order_due(input, state) || is_mask_due(input, state) ||
                    is_permutation_due(input, state));
}

bool values_are_weights(const Recipe& recipe) { return recipe.forward != ForwardPart::kSoft; }

void forward_values(const LayerInput& input, const LayerState& state, float* out) {
  if (values_are_weights(*input.recipe)) {
    masked_copy(input.weights, state.forward, out);
  } else {
    soft_threshold(input.weights, state.forward, input.shape, input.pattern, state.beta, out,
                   state.row_order);
  }
}

}  // namespace weft
