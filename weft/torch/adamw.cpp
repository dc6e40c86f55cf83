#include "weft/torch/adamw.h"

#include <torch/version.h>

#include <cmath>
#include <utility>
#include <vector>

#include "weft/core/error.h"

namespace weft {

torch::optim::AdamWParamState* AdamW::state_of(const torch::Tensor& parameter) {
#if TORCH_VERSION_MAJOR >= 2  // what torch keeps the state under: text until 2.0, a pointer since
  const auto found = state().find(static_cast<void*>(parameter.unsafeGetTensorImpl()));
#else
  const auto found = state().find(c10::guts::to_string(parameter.unsafeGetTensorImpl()));
#endif
  if (found == state().end()) return nullptr;
  return static_cast<torch::optim::AdamWParamState*>(found->second.get());
}

void AdamW::freeze_second_moment(const torch::Tensor& parameter, int64_t learned) {
  WEFT_CHECK(learned >= 1 && state_of(parameter) != nullptr,
             "a second moment can be frozen only after steps in which it was learned");
  frozen_[parameter.unsafeGetTensorImpl()] = learned;
}

void AdamW::unfreeze_second_moment(const torch::Tensor& parameter) {
  frozen_.erase(parameter.unsafeGetTensorImpl());
}

torch::Tensor AdamW::step(LossClosure closure) {
  if (frozen_.empty()) return torch::optim::AdamW::step(std::move(closure));
  torch::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const torch::NoGradGuard no_grad;
  // Torch's own step passes over parameters without a gradient.
  std::vector<std::pair<torch::Tensor, torch::Tensor>> hidden;
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const torch::optim::AdamWOptions&>(group.options());
    for (torch::Tensor& parameter : group.params()) {
      const auto found = frozen_.find(parameter.unsafeGetTensorImpl());
      if (found == frozen_.end() || !parameter.grad().defined()) continue;
      frozen_step(parameter, options, found->second);
      hidden.emplace_back(parameter, parameter.grad());
      parameter.mutable_grad() = torch::Tensor();
    }
  }
  torch::optim::AdamW::step();
  for (auto& [parameter, gradient] : hidden) parameter.mutable_grad() = gradient;
  return loss;
}

void AdamW::frozen_step(torch::Tensor& parameter, const torch::optim::AdamWOptions& options,
                        int64_t learned) {
  torch::optim::AdamWParamState& state = *state_of(parameter);
  const auto [beta1, beta2] = options.betas();
  state.step(state.step() + 1);
  torch::Tensor mean = state.exp_avg();
  mean.mul_(beta1).add_(parameter.grad(), 1.0 - beta1);
  const auto correction = [](double beta, int64_t steps) {
    return 1.0 - std::pow(beta, static_cast<double>(steps));
  };
  const torch::Tensor root =
      (state.exp_avg_sq().sqrt() / std::sqrt(correction(beta2, learned))).add_(options.eps());
  parameter.mul_(1.0 - options.lr() * options.weight_decay());
  parameter.addcdiv_(mean, root, -options.lr() / correction(beta1, state.step()));
}

}  // namespace weft
