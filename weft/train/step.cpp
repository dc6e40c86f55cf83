#include "weft/train/step.h"

namespace weft {
namespace {

// Of the group that a parameter is in; decoupled decay goes by it.
double learning_rate_of(const torch::Tensor& parameter, torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& member : group.params()) {
      if (member.is_same(parameter)) return group.options().get_lr();
    }
  }
  return 0.0;  // not trained: nothing decays
}

}  // namespace

void step(torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  const auto layers = layers_of(model);
  for (const auto& [name, layer] : layers) {
    layer->add_decay(learning_rate_of(layer->weight, optimizer));
  }
  optimizer.step();
  for (const auto& [name, layer] : layers) layer->advance();
}

void weights_changed(torch::nn::Module& model) {
  for (const auto& [name, layer] : layers_of(model)) layer->weights_changed();
}

}  // namespace weft
