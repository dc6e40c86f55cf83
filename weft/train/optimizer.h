// The optimiser of a run, its learning rate, and its state as tensors.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>

#include "weft/core/json.h"
#include "weft/run/run_options.h"
#include "weft/torch/tensor_file.h"

namespace weft {

// SGD with momentum, of libtorch, or AdamW (weft/torch/adamw.h). Weight decay pulls at matrices and kernels only: not at
// biases, norms, positions (the weight of a module called "positions"), and not at the scores of
// lbc. Embeddings of tokens are matrices.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(torch::nn::Module& model,
                                                        const RunOptions& options);

// Linear from 0 in the warm-up, then a cosine down to final_rate of it at the last step.
double learning_rate_at(const RunOptions& options, int64_t step);
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

// Before a backward pass. libtorch 1.13 fills gradients with zeros and adds to them; a gradient
// that is not there is simply put there, which saves two passes over memory.
void forget_gradients(torch::optim::Optimizer& optimizer);

// The state by the names of the parameters: "optimizer.<parameter>.exp_avg" and so on, and how many
// steps each parameter has taken.
struct OptimizerState {
  NamedTensors tensors;
  Json steps;  // {parameter: number}, of AdamW
};
OptimizerState optimizer_state(torch::nn::Module& model, torch::optim::Optimizer& optimizer);
// Throws Error that names the file if something is missing or has another shape.
void load_optimizer_state(torch::nn::Module& model, torch::optim::Optimizer& optimizer,
                          const TensorFile& file, const Json& steps);

}  // namespace weft
