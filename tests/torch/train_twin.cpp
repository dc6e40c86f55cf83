// Trains a small network for 20 steps with the libtorch adapter and prints the losses, one per line:
// python/tests/test_twin.py trains the same one with the Python package, and both must agree.
//
//   train_twin RECIPE PATTERN
//
// Weights and data are sines, so that nothing has to be passed on. A tensor is filled with
// scale · sin(0.37 i + phase).
#include <torch/torch.h>

#include <cmath>

#include "weft/torch/sparsify.h"
#include "weft/torch/step.h"

namespace weft {
namespace {

constexpr int64_t kSteps = 20, kTokens = 24, kIns = 16, kWidth = 32, kOuts = 8;

torch::Tensor sines(std::vector<int64_t> sizes, double scale, double phase) {
  torch::Tensor t = torch::empty(sizes);
  for (int64_t i = 0; i < t.numel(); ++i) {
    t.data_ptr<float>()[i] =
        static_cast<float>(scale * std::sin(0.37 * static_cast<double>(i) + phase));
  }
  return t;
}

void run(const std::string& recipe, const std::string& pattern) {
  torch::nn::Sequential model(torch::nn::Linear(kIns, kWidth), torch::nn::Tanh(),
                              torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                              torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh(),
                              torch::nn::Linear(kWidth, kOuts));
  {
    const torch::NoGradGuard no_grad;
    double phase = 0.0;
    for (torch::Tensor& parameter : model->parameters()) {
      parameter.copy_(sines(parameter.sizes().vec(), 0.3, phase++));
    }
  }
  SparsifyConfig config;
  config.recipe = recipe;
  config.pattern = Pattern::parse(pattern);
  config.total_steps = kSteps;
  config.seed = 3;
  config.planner = std::make_shared<Planner>(PlanMode::kSparse);
  sparsify(*model, config);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int64_t i = 0; i < kSteps; ++i) {
    const auto phase = static_cast<double>(i);
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(model->forward(sines({kTokens, kIns}, 1.0, phase)),
                                               sines({kTokens, kOuts}, 1.0, 2 * phase));
    loss.backward();
    weft::step(*model, optimizer);
    fmt::print("{:.9g}\n", loss.item<double>());
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  weft::run(argv[1], argv[2]);
}
