#include "weft/train/step.h"

#include <optional>

namespace weft {
namespace {

// Of the group that a parameter is in; nothing if the optimiser does not train it.
std::optional<double> learning_rate_of(const torch::Tensor& parameter,
                                       torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& member : group.params()) {
      if (member.is_same(parameter)) return group.options().get_lr();
    }
  }
  return std::nullopt;
}

}  // namespace

void step(torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  std::vector<std::shared_ptr<Layer>> trained;
  for (const auto& [name, layer] : layers_of(model)) {
    const auto learning_rate = learning_rate_of(layer->weight, optimizer);
    if (!learning_rate) continue;
    layer->add_decay(*learning_rate);
    trained.push_back(layer);
  }
  optimizer.step();
  // All are counted before the first can fail.
  for (const auto& layer : trained) layer->count_step();
  for (const auto& layer : trained) layer->bring_up_to_date();
}

void weights_changed(torch::nn::Module& model) {
  for (const auto& [name, layer] : layers_of(model)) layer->weights_changed();
}

}  // namespace weft
