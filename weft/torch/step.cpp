#include "weft/torch/step.h"

#include <optional>

#include "weft/recipe/schedule.h"
#include "weft/torch/adamw.h"

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

// Of layers whose recipe has moment=frozen: the second moment stays while they are sparse.
void freeze_moment(const std::string& name, const LayerModule& layer,
                   torch::optim::Optimizer& optimizer) {
  const LayerSettings& settings = layer.settings();
  if (!settings.recipe.frozen_moment) return;
  auto* adamw = dynamic_cast<AdamW*>(&optimizer);
  WEFT_CHECK(adamw != nullptr,
             "{}: the recipe '{}' has moment=frozen, which needs weft::AdamW (weft/torch/adamw.h)",
             name.empty() ? layer.name() : name, settings.recipe.name);
  if (is_dense_step(settings.recipe, layer.state().step, settings.total_steps)) {
    adamw->unfreeze_second_moment(layer.weight);
  } else {
    adamw->freeze_second_moment(layer.weight,
                                dense_head_steps(settings.recipe, settings.total_steps));
  }
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
    freeze_moment(name, *layer, optimizer);
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
