#include "weft/train/optimizer.h"

#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/version.h>

#include <cmath>
#include <numbers>

#include "weft/core/text.h"
#include "weft/torch/adamw.h"
#include "weft/torch/export_model.h"

namespace weft {
namespace {

bool decays(const std::string& name, const torch::Tensor& parameter) {
  const auto layer = layer_of_weight(name);
  const bool positions = layer && (*layer == "positions" || layer->ends_with(".positions"));
  return parameter.dim() >= 2 && name.ends_with("weight") && !positions;
}

// What torch keeps the state of a parameter under: text until 2.0, a pointer since.
auto state_key(const torch::Tensor& parameter) {
#if TORCH_VERSION_MAJOR >= 2
  return static_cast<void*>(parameter.unsafeGetTensorImpl());
#else
  return c10::guts::to_string(parameter.unsafeGetTensorImpl());
#endif
}

std::string tensor_name(const std::string& parameter, const char* part) {
  return fmt::format("optimizer.{}.{}", parameter, part);
}

void load_adamw(const torch::Tensor& parameter, const std::string& name,
                torch::optim::Optimizer& optimizer, const TensorFile& file, const Json& steps) {
  if (!steps.contains(name)) {  // it has not taken a step yet
    WEFT_CHECK(!file.tensors.contains(tensor_name(name, "exp_avg")),
               "{}: parameter '{}' has moments but no step", file.name, name);
    return;
  }
  WEFT_CHECK(steps[name].is_number_unsigned(), "{}: the step of '{}' is not a number", file.name,
             name);
  auto state = std::make_unique<torch::optim::AdamWParamState>();
  state->step(steps[name].get<int64_t>());
  state->exp_avg(file.like(parameter, tensor_name(name, "exp_avg")).clone());
  state->exp_avg_sq(file.like(parameter, tensor_name(name, "exp_avg_sq")).clone());
  optimizer.state()[state_key(parameter)] = std::move(state);
}

void load_sgd(const torch::Tensor& parameter, const std::string& name,
              torch::optim::Optimizer& optimizer, const TensorFile& file) {
  const std::string saved = tensor_name(name, "momentum");
  if (!file.tensors.contains(saved)) return;
  auto state = std::make_unique<torch::optim::SGDParamState>();
  state->momentum_buffer(file.like(parameter, saved).clone());
  optimizer.state()[state_key(parameter)] = std::move(state);
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> make_optimizer(torch::nn::Module& model,
                                                        const RunOptions& options) {
  std::vector<torch::Tensor> decayed, others;
  for (const auto& parameter : model.named_parameters()) {
    (decays(parameter.key(), parameter.value()) ? decayed : others).push_back(parameter.value());
  }
  const auto groups = [&](auto with_decay) {
    auto without = with_decay;
    without.weight_decay(0.0);
    std::vector<torch::optim::OptimizerParamGroup> found;
    found.emplace_back(decayed, std::make_unique<decltype(with_decay)>(
                                    with_decay.weight_decay(options.weight_decay)));
    found.emplace_back(others, std::make_unique<decltype(without)>(without));
    return found;
  };
  if (options.optimizer == "sgd") {
    auto sgd = torch::optim::SGDOptions(options.learning_rate).momentum(options.momentum);
    return std::make_unique<torch::optim::SGD>(groups(sgd), sgd);
  }
  auto adamw =
      torch::optim::AdamWOptions(options.learning_rate).betas({options.momentum, options.beta2});
  return std::make_unique<AdamW>(groups(adamw), adamw);
}

double learning_rate_at(const RunOptions& options, int64_t step) {
  const auto warmup = static_cast<int64_t>(options.warmup * static_cast<double>(options.steps));
  if (step < warmup) {
    return options.learning_rate * static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  const double done = static_cast<double>(step - warmup) /
                      std::max(1.0, static_cast<double>(options.steps - 1 - warmup));
  const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * std::min(1.0, done)));
  return options.learning_rate * (options.final_rate + (1.0 - options.final_rate) * cosine);
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

void forget_gradients(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    for (torch::Tensor& parameter : group.params()) parameter.mutable_grad() = torch::Tensor();
  }
}

OptimizerState optimizer_state(torch::nn::Module& model, torch::optim::Optimizer& optimizer) {
  OptimizerState found;
  found.steps = Json::object();
  for (const auto& parameter : model.named_parameters()) {
    const std::string& name = parameter.key();
    const auto state = optimizer.state().find(state_key(parameter.value()));
    if (state == optimizer.state().end()) continue;
    if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(state->second.get())) {
      found.steps.append(name, adamw->step());
      found.tensors.emplace_back(tensor_name(name, "exp_avg"), adamw->exp_avg());
      found.tensors.emplace_back(tensor_name(name, "exp_avg_sq"), adamw->exp_avg_sq());
    } else if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(state->second.get())) {
      found.tensors.emplace_back(tensor_name(name, "momentum"), sgd->momentum_buffer());
    }
  }
  return found;
}

void load_optimizer_state(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                          const TensorFile& file, const Json& steps) {
  optimizer.state().clear();
  const bool adamw = dynamic_cast<torch::optim::AdamW*>(&optimizer) != nullptr;
  for (const auto& parameter : model.named_parameters()) {
    if (adamw) {
      load_adamw(parameter.value(), parameter.key(), optimizer, file, steps);
    } else {
      load_sgd(parameter.value(), parameter.key(), optimizer, file);
    }
  }
}

}  // namespace weft
