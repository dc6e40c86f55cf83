#include "weft/train/layer_inputs.h"

#include <torch/nn/modules/batchnorm.h>

#include <algorithm>
#include <map>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/data/sample_order.h"
#include "weft/torch/layer_module.h"
#include "weft/train/model_mode.h"

namespace weft {
namespace {

void run_network(const NetworkSamples& on) {
  const torch::NoGradGuard no_grad;
  const int64_t all = on.source.train_samples(), count = std::min(on.samples, all);
  WEFT_CHECK(count >= 1 && on.batch >= 1, "{} samples in batches of {}", count, on.batch);
  // Batches of nearly the same size, so that their statistics count alike.
  const int64_t batches = ceil_div(count, on.batch);
  std::vector<int64_t> chosen;
  int64_t batch = 0;
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back(spread_sample(i, count, all));
    if (i + 1 < (batch + 1) * count / batches) continue;
    on.model.forward(on.source.train_batch(chosen, 0).inputs);
    chosen.clear();
    ++batch;
  }
}

// Restarts, and takes the mean over all batches while this is in scope.
class FreshStatistics {
 public:
  explicit FreshStatistics(torch::nn::BatchNorm2dImpl& norm)
      : norm_(norm), momentum_(norm.options.momentum()) {
    norm.options.momentum(c10::nullopt);
    norm.reset_running_stats();
  }
  ~FreshStatistics() { norm_.options.momentum(momentum_); }
  FreshStatistics(const FreshStatistics&) = delete;
  FreshStatistics& operator=(const FreshStatistics&) = delete;

 private:
  torch::nn::BatchNorm2dImpl& norm_;
  c10::optional<double> momentum_;
};

}  // namespace

void for_each_layer_input(
    const NetworkSamples& on, const std::set<std::string>& layers,
    const std::function<void(const std::string& layer, MatrixView<const float>)>& see) {
  std::map<const LayerModule*, std::string> wanted;
  for (const auto& [name, layer] : layers_of(on.model)) {
    if (layers.contains(name)) wanted[layer.get()] = name;
  }
  for (const std::string& name : layers) {
    const bool found =
        std::ranges::any_of(wanted, [&](const auto& one) { return one.second == name; });
    WEFT_CHECK(found, "the network has no layer {}", name);
  }
  const ModelMode mode(on.model, /*training=*/false);
  const LayerModule::InputWatch watch(
      [&](const LayerModule& running, const std::function<torch::Tensor()>& rows) {
        const auto one = wanted.find(&running);
        if (one == wanted.end()) return;
        const torch::Tensor x = rows().to(torch::kFloat32);
        see(one->second, {x.data_ptr<float>(), x.size(0), x.size(1)});
      });
  run_network(on);
}

int64_t estimate_norms(const NetworkSamples& on) {
  std::vector<std::unique_ptr<FreshStatistics>> norms;
  for (const auto& module : on.model.modules()) {
    auto* norm = module->as<torch::nn::BatchNorm2dImpl>();
    if (norm != nullptr) norms.push_back(std::make_unique<FreshStatistics>(*norm));
  }
  if (norms.empty()) return 0;
  const ModelMode mode(on.model, /*training=*/true);
  run_network(on);
  return static_cast<int64_t>(norms.size());
}

}  // namespace weft
