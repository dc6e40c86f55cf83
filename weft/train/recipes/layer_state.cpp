#include "weft/train/recipes/layer_state.h"

#include "weft/core/masked_copy.h"
#include "weft/core/rng.h"
#include "weft/train/recipes/best_combination.h"
#include "weft/train/recipes/bi_mask.h"
#include "weft/train/recipes/magnitude_masks.h"
#include "weft/train/recipes/permutation.h"
#include "weft/train/recipes/schedule.h"
#include "weft/train/recipes/soft_threshold.h"

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

void update_forward(const LayerInput& input, LayerState& state) {
  if (input.recipe->forward == ForwardPart::kUnion) return update_union(input, state);
  const bool moved = update_row_order(input, rng_for(RandomUse::kRowOrder, state), state);
  update_magnitude_mask(input, moved, state);
  if (input.recipe->forward == ForwardPart::kSoft && !state.scaled) {
    state.beta = soft_threshold_scale(input.weights, state.forward, input.shape, input.pattern,
                                      state.row_order);
    state.scaled = true;
  }
}

void update_backward(const LayerInput& input, LayerState& state) {
  if (input.recipe->backward == BackwardPart::kSame) {
    state.backward = Mask();
    return;
  }
  const int64_t every = input.recipe->schedule.permutation_every;
  const bool first = state.permutation.empty();
  if (first) state.permutation = identity_permutation(input.shape.outs);
  if (every > 0 && (first || state.step % every == 0)) {
    improve_permutation(state.forward, input.pattern,
                        {input.recipe->permutation_search, input.recipe->permutation_goal, 0},
                        rng_for(RandomUse::kPermutation, state), state.permutation);
  }
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
  if (values_are_weights(*input.recipe)) {
    masked_copy(input.weights, state.forward, out);
  } else {
    soft_threshold(input.weights, state.forward, input.shape, input.pattern, state.beta, out,
                   state.row_order);
  }
}

}  // namespace weft
