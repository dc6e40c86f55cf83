// A model and a training loop of one's own, with layers of torch: sparsify it, step through weft, and
// write a file that `weft check` and `weft pack` take. Builds with
//
//   find_package(weft REQUIRED COMPONENTS train)
//   target_link_libraries(own_loop PRIVATE weft::train)
//
// and runs as `own_loop FILE`. The task: is there more light or more dark in a noisy sequence?
// (examples/own_model.cpp leaves the loop to weft's trainer.)
#include <torch/torch.h>

#include <cstdio>

#include "weft/torch/export_model.h"
#include "weft/torch/sparsify.h"
#include "weft/torch/step.h"

namespace {

constexpr int64_t kTokens = 24, kFeatures = 8, kWidth = 64;

struct NetworkImpl : torch::nn::Module {
  NetworkImpl() {
    in = register_module("in", torch::nn::Linear(kFeatures, kWidth));
    encoder = register_module(
        "encoder", torch::nn::TransformerEncoderLayer(
                       torch::nn::TransformerEncoderLayerOptions(kWidth, 4).dim_feedforward(128)));
    out = register_module("out", torch::nn::Linear(kWidth, 2));
  }
  torch::Tensor forward(const torch::Tensor& x) {  // [tokens, samples, features]
    return out(encoder(in(x)).mean(0));
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::TransformerEncoderLayer encoder{nullptr};
};
TORCH_MODULE(Network);

struct Batch {
  torch::Tensor x, target;
};
Batch make_batch(int64_t samples) {
  const torch::Tensor target = torch::randint(2, {samples}, torch::kLong);
  const torch::Tensor light = target.to(torch::kFloat).mul(2).sub(1).view({1, samples, 1});
  return {torch::randn({kTokens, samples, kFeatures}) + 0.25 * light, target};
}

void run(const char* path) {
  torch::manual_seed(1);
  Network model;
  weft::SparsifyConfig config;
  config.recipe = "sr-ste";
  config.pattern = weft::Pattern(2, 4);
  for (const weft::LayerReport& layer : weft::sparsify(*model, config)) {
    std::printf("%-26s %-7s %s\n", layer.name.c_str(), layer.recipe.c_str(), layer.reason.c_str());
  }
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int i = 0; i < 100; ++i) {
    const Batch batch = make_batch(32);
    optimizer.zero_grad();
    torch::cross_entropy_loss(model(batch.x), batch.target).backward();
    weft::step(*model, optimizer);  // instead of optimizer.step()
  }
  model->eval();
  const torch::NoGradGuard no_grad;
  const Batch test = make_batch(500);
  const double right =
      model(test.x).argmax(1).eq(test.target).to(torch::kDouble).mean().item<double>();
  weft::export_model(path, *model);
  std::printf("accuracy %.3f; the weights are in %s\n", right, path);
  TORCH_CHECK(right > 0.9, "it has not learned");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: own_loop FILE\n");
    return 2;
  }
  try {
    run(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "own_loop: %s\n", error.what());
    return 1;
  }
}
