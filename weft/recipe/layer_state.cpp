#include "weft/recipe/layer_state.h"

#include "weft/core/masked_copy.h"
#include "weft/recipe/magnitude_masks.h"
#include "weft/recipe/schedule.h"

namespace weft {
namespace {

void refresh_forward(const LayerInput& input, LayerState& state) {
  const bool begins = !state.sparse();
  const bool moved = is_order_due(input, state) &&
                     update_row_order(input, rng_for(RandomUse::kRowOrder, state), state);
  if (begins || moved || is_mask_due(input, state)) input.recipe->forward->find(input, state);
}

bool is_backward_due(const LayerInput& input, const LayerState& state) {
  const BackwardPart& part = *input.recipe->backward;
  return part.is_refresh_due != nullptr && part.is_refresh_due(input, state);
}

void keep_within(const Mask& outer, Mask& mask) {
  if (mask.rows() == 0) return;
  const int64_t words = mask.rows() * ((mask.cols() + 63) / 64);
  for (int64_t i = 0; i < words; ++i) mask.row_words(0)[i] &= outer.row_words(0)[i];
}

void update_backward(const LayerInput& input, LayerState& state) {
  const BackwardPart& part = *input.recipe->backward;
  if (part.same()) return;
  // The largest of the operand, which along outputs are not the largest weights if every group has
  // lost a threshold of its own.
  std::vector<float> operand;
  const float* values = input.weights;
  if (!values_are_weights(*input.recipe)) {
    operand.resize(static_cast<size_t>(input.shape.outs * input.shape.cols()));
    forward_values(input, state, operand.data());
    values = operand.data();
  }
  part.find(input, values, state);
  keep_within(state.forward, state.backward);
}

}  // namespace

Rng rng_for(RandomUse use, const LayerState& state) {
  const Rng of_layer(state.seed, (static_cast<uint64_t>(use) << 32) |
                                     static_cast<uint64_t>(state.layer & 0xffffffff));
  return Rng(of_layer.bits(static_cast<uint64_t>(state.step)));
}

void bring_up_to_date(const LayerInput& input, LayerState& state) {
  if (!state.begun) {
    refresh(input, state);
    return;
  }
  if (!state.sparse()) return;
  if (follows_weights(input)) input.recipe->forward->find(input, state);
  update_backward(input, state);
}

void refresh(const LayerInput& input, LayerState& state) {
  if (is_dense_step(*input.recipe, state.step, input.total_steps)) {
    state.forward = Mask();
    state.backward = Mask();
  } else if (is_refresh_due(input, state)) {
    refresh_forward(input, state);
    const BackwardPart& part = *input.recipe->backward;
    if (part.refresh != nullptr) part.refresh(input, state);
    update_backward(input, state);
  }
  state.begun = true;
  state.refreshed = state.step;
}

bool is_refresh_due(const LayerInput& input, const LayerState& state) {
  const bool dense = is_dense_step(*input.recipe, state.step, input.total_steps);
  if (!state.begun || dense == state.sparse()) return true;
  return !dense &&
         (is_order_due(input, state) || is_mask_due(input, state) || is_backward_due(input, state));
}

bool values_are_weights(const Recipe& recipe) { return recipe.forward->values == nullptr; }

void forward_values(const LayerInput& input, const LayerState& state, float* out) {
  if (values_are_weights(*input.recipe)) {
    masked_copy(input.weights, state.forward, out);
  } else {
    input.recipe->forward->values(input, state, out);
  }
}

}  // namespace weft
