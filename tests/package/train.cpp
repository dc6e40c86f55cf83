// Sparsifies a torch model and takes a step, through the installed headers and libraries only.
#include <torch/torch.h>

#include <cstdio>

#include "weft/torch/sparsify.h"
#include "weft/torch/step.h"

int main() {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Linear(16, 32), torch::nn::Linear(32, 32),
                              torch::nn::Linear(32, 8));
  weft::SparsifyConfig config;
  config.recipe = "sr-ste";
  config.planner = std::make_shared<weft::Planner>(weft::PlanMode::kSparse, "");
  int sparse = 0;
  for (const weft::LayerReport& layer : weft::sparsify(*model, config)) {
    sparse += layer.recipe == "sr-ste";
  }
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  model->forward(torch::randn({8, 16})).sum().backward();
  weft::step(*model, optimizer);
  weft::densify(*model);
  const torch::Tensor w = model->parameters()[2];
  std::printf("%d sparse layer, %d of %d weights\n", sparse,
              static_cast<int>(torch::count_nonzero(w).item<int64_t>()),
              static_cast<int>(w.numel()));
  return sparse == 1 && torch::count_nonzero(w).item<int64_t>() == w.numel() / 2 ? 0 : 1;
}
