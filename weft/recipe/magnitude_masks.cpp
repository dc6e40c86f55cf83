#include "weft/recipe/magnitude_masks.h"

#include <algorithm>

#include "weft/mask/row_order.h"
#include "weft/mask/solver.h"
#include "weft/mask/within.h"
#include "weft/recipe/schedule.h"

namespace weft {
namespace {

Mask nonzero_weights(const LayerInput& input) {
  Mask nonzero(input.shape.outs, input.shape.cols());
  const float* weight = input.weights;
  for (int64_t row = 0; row < nonzero.rows(); ++row) {
    MaskRowWriter writer(nonzero.row_words(row));
    for (int64_t col = 0; col < nonzero.cols(); ++col) writer.append(*weight++ != 0.0f, 1);
    writer.finish();
  }
  return nonzero;
}

// A group of fewer non-zeros than `keep` is filled up with zeros by the solver; rows that share
// are, with zeros that others do not have.
Mask without_zeros(const LayerInput& input, const Mask& found, std::span<const int64_t> order) {
  const Mask nonzero = nonzero_weights(input);
  if (order.empty()) return mask_within(nonzero, found, input.shape, input.pattern);
  return undo_row_order(mask_within(in_row_order(nonzero, order), in_row_order(found, order),
                                    input.shape, input.pattern),
                        order);
}

constexpr std::string_view kSettings[] = {"mask_every", "order_every", "order_end", "solver"};

}  // namespace

const ForwardPart kTopNPart = {.name = "top-n",
                               .by_magnitude = true,
                               .settings = std::span(kSettings).first(3),
                               .find = find_magnitude_mask};
const ForwardPart kTransposablePart = {.name = "transposable",
                                       .transposable = true,
                                       .by_magnitude = true,
                                       .settings = kSettings,
                                       .find = find_magnitude_mask};

bool is_order_due(const LayerInput& input, const LayerState& state) {
  if (input.recipe->schedule.order_every == 0 || input.pattern.share() == 1) return false;
  if (!state.sparse()) return true;
  return !input.recipe->has_fixed_mask() &&
         is_order_step(*input.recipe, state.refreshed, state.step, input.total_steps);
}

bool update_row_order(const LayerInput& input, const Rng& rng, LayerState& state) {
  constexpr int kRounds = 16, kFirstRounds = 64;
  RowOrderOptions options;
  options.rng = rng;
  options.rounds = state.row_order.empty() ? kFirstRounds : kRounds;
  options.start = state.row_order;
  std::vector<int64_t> found = find_row_order(input.weights, input.shape, input.pattern,
                                              input.recipe->forward->transposable, options);
  if (std::ranges::is_sorted(found)) found.clear();  // the identity
  if (found == state.row_order) return false;
  state.row_order = std::move(found);
  return true;
}

bool follows_weights(const LayerInput& input) {
  const int64_t every = mask_interval(*input.recipe, input.pattern);
  return every == 1 || (input.replaced && every > 0);
}

bool is_mask_due(const LayerInput& input, const LayerState& state) {
  const int64_t every = mask_interval(*input.recipe, input.pattern);
  return every > 1 && comes_due(every, state.refreshed, state.step);
}

void find_magnitude_mask(const LayerInput& input, LayerState& state) {
  const std::span<const int64_t> order = state.row_order;
  state.forward =
      find_mask(input.recipe->mask_solver(), input.weights, input.shape, input.pattern, order);
  if (input.recipe->has_fixed_mask()) state.forward = without_zeros(input, state.forward, order);
}

}  // namespace weft
