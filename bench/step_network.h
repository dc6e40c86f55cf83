// The networks of `weft bench step`: of weft's layers, and in plain libtorch, as a user would write
// them. Parameters have the same names in both.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <string>

#include "bench/step_shape.h"
#include "weft/core/precision.h"

namespace weft::bench {

struct StepNetwork {
  std::shared_ptr<torch::nn::Module> module;
  std::function<torch::Tensor(const torch::Tensor&)> forward;
};

// The first layer of weft's network that shows a plan for all.
std::string planned_layer(const StepShape& shape);

StepNetwork weft_network(const StepShape& shape, Precision precision);
StepNetwork plain_network(const StepShape& shape);

// The input, and the gradient of the output: the same for all.
struct StepInputs {
  torch::Tensor x, g;
};
StepInputs step_inputs(const StepShape& shape, Precision precision);

}  // namespace weft::bench
