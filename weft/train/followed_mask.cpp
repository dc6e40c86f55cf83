#include "weft/train/followed_mask.h"

namespace weft {

FollowedMask::FollowedMask(std::shared_ptr<LayerModule> of, const LayerSettings& by)
    : layer(std::move(of)), settings(by) {
  settings.recipe = settings.recipe.without_backward_mask();
}

std::optional<int64_t> FollowedMask::follow(int64_t step) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor host = layer->weight.detach().to(torch::kCPU, torch::kFloat).contiguous();
  state.step = step;
  state.seed = settings.seed;
  state.layer = settings.number;
  state.scaled = true;  // β is not wanted
  LayerInput input;
  input.weights = host.data_ptr<float>();
  input.shape = layer->weight_shape();
  input.pattern = settings.pattern;
  input.recipe = &settings.recipe;
  input.total_steps = settings.total_steps;
  const Mask trained = state.forward;
  bring_up_to_date(input, state);
  std::optional<int64_t> changed;
  if (trained.rows() > 0) changed = pending + Mask::differing(trained, state.forward);
  const Mask stored = state.forward;  // what the next training pass would change
  if (is_refresh_due(input, state)) refresh(input, state);
  pending = stored.rows() == state.forward.rows() ? Mask::differing(stored, state.forward) : 0;
  state.refreshed = step;
  return changed;
}

}  // namespace weft
