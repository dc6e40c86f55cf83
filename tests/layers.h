// Layers, inputs and runs for tests of training: one linear and one convolution layer of odd
// shapes, each under any recipe, pattern and path.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "weft/torch/conv2d.h"
#include "weft/torch/linear.h"
#include "weft/torch/step.h"

namespace weft::test {

enum class Kind { kLinear, kConv, kGroupedConv };

inline const char* kind_name(Kind kind) {
  return kind == Kind::kLinear ? "linear" : kind == Kind::kConv ? "conv" : "grouped conv";
}

constexpr int64_t kTotalSteps = 12;

inline LayerSettings settings_of(const std::string& recipe, const std::string& pattern,
                                 PlanMode mode = PlanMode::kSparse) {
  LayerSettings settings;
  settings.recipe = Recipe::parse(recipe);
  settings.pattern = Pattern::parse(pattern);
  settings.total_steps = kTotalSteps;
  settings.seed = 5;
  settings.number = 3;
  settings.planner = std::make_shared<Planner>(mode, "");
  return settings;
}

// With weights that depend on `seed` only.
inline std::shared_ptr<LayerModule> make_layer(Kind kind, const LayerSettings& settings,
                                               uint64_t seed = 1) {
  torch::manual_seed(seed);
  std::shared_ptr<LayerModule> layer;
  if (kind == Kind::kLinear) {
    layer = std::make_shared<LinearImpl>(36, 136);  // more outputs than a work item has rows
  } else if (kind == Kind::kGroupedConv) {
    layer = std::make_shared<Conv2dImpl>(
        torch::nn::Conv2dOptions(16, 32, {3, 2}).stride({2, 1}).padding({1, 0}).groups(2));
  } else {
    layer = std::make_shared<Conv2dImpl>(
        torch::nn::Conv2dOptions(16, 24, {3, 2}).stride({2, 1}).padding({1, 0}));
  }
  layer->configure(settings);
  return layer;
}

inline torch::Tensor make_input(Kind kind, uint64_t seed) {
  torch::manual_seed(seed);
  return kind == Kind::kLinear ? torch::randn({2, 11, 36}) : torch::randn({3, 16, 7, 6});
}

// The gradient that a loss would send back.
inline torch::Tensor make_gradient(const torch::Tensor& y, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn_like(y);
}

inline std::vector<std::string> all_recipes() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.push_back(recipe.name);
  names.push_back("s-ste+backward=bi-mask");
  names.push_back("t-sr-ste+fp8");
  names.push_back("sr-ste+decay=decoupled");
  names.push_back("dense+gradient=mvue");
  names.push_back("s-ste+gradient=mvue@4:8");
  names.push_back("bi-mask+fp8");
  names.push_back("sr-ste+order_every=3");
  names.push_back("t-sr-ste+order_every=2");
  names.push_back("s-ste+order_every=5");
  names.push_back("static+order_every=1");
  names.push_back("static+forward=transposable");
  names.push_back("t-sr-ste+solver=greedy-keep+mask_every=3");
  return names;
}

// Largest |a − b| relative to the largest |b|.
inline double difference(const torch::Tensor& a, const torch::Tensor& b) {
  const double size = b.abs().max().item<double>();
  const double gap = (a.to(torch::kDouble) - b.to(torch::kDouble)).abs().max().item<double>();
  return size > 0.0 ? gap / size : gap;
}

inline bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() && torch::equal(a, b);
}

// A layer with an optimiser, trained on inputs and gradients that depend on the step only.
class Training {
 public:
  Training(Kind kind, const LayerSettings& settings, double learning_rate = 0.05)
      : kind_(kind), layer(make_layer(kind, settings)), optimizer(make_optimizer(learning_rate)) {}

  // One optimiser step of `micro_batches` passes, the gradient divided among them.
  void step(int micro_batches = 1) {
    optimizer.zero_grad();
    for (int i = 0; i < micro_batches; ++i) pass(i, 1.0 / micro_batches);
    weft::step(*layer, optimizer);
    ++steps_;
  }

  void pass(int micro_batch, double scale) {
    const auto type = layer->weight.scalar_type();
    const uint64_t seed = static_cast<uint64_t>(100 + 10 * steps_ + micro_batch);
    x = make_input(kind_, seed).to(type).requires_grad_(true);
    y = layer->forward(x);
    y.backward(make_gradient(y, seed + 1000) * scale);
  }

  void resume_at(int steps) { steps_ = steps; }

 private:
  torch::optim::SGD make_optimizer(double learning_rate) {
    return torch::optim::SGD(layer->parameters(),
                             torch::optim::SGDOptions(learning_rate).momentum(0.9));
  }

  Kind kind_;
  int steps_ = 0;

 public:
  std::shared_ptr<LayerModule> layer;
  torch::optim::SGD optimizer;
  torch::Tensor x, y;  // of the last pass
};

}  // namespace weft::test
