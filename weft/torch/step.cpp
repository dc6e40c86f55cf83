#include "weft/torch/step.h"

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

bool trains(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  return learning_rate_of(parameter, optimizer).has_value();
}

// Scores that nothing moves would all stay equal, and the subsets that are left would be the first.
// Those that are frozen, at the end of the removal, need no optimiser.
void require_scores_trained(const std::string& name, const LayerModule& layer,
                            torch::optim::Optimizer& optimizer) {
  if (!layer.scores.defined() || !layer.scores.requires_grad()) return;
  WEFT_CHECK(trains(optimizer, layer.scores),
             "{}: the optimiser has the weights but not the scores of '{}': create it after "
             "sparsify, from all parameters of the model",
             name.empty() ? layer.name() : name, layer.settings().recipe.name);
}

}  // namespace

void step(torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  std::vector<std::shared_ptr<LayerModule>> trained, others;
  for (const auto& [name, layer] : layers_of(model)) {
    if (!trains(optimizer, layer->weight)) {
      if (layer->prepared_for_weights()) others.push_back(layer);
      continue;
    }
    require_scores_trained(name, *layer, optimizer);
    trained.push_back(layer);
  }
  for (const auto& layer : trained) {
    layer->add_decay(*learning_rate_of(layer->weight, optimizer));
  }
  optimizer.step();
  // All are counted before the first can fail.
  for (const auto& layer : trained) layer->count_step();
  for (const auto& layer : trained) layer->bring_up_to_date();
  // A tied weight, in memory that the optimiser knows as another module's parameter.
  for (const auto& layer : others) {
    if (!layer->prepared_for_weights()) layer->weights_changed();
  }
}

void weights_changed(torch::nn::Module& model) {
  for (const auto& [name, layer] : layers_of(model)) layer->weights_changed();
}

}  // namespace weft
