// Linear: torch::nn::Linear that trains by a recipe (layer_module.h). Takes the same options and begins
// with the same weights for the same seed of torch.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "weft/layer/linear_layer.h"
#include "weft/torch/layer_module.h"

namespace weft {

class LinearImpl : public LayerModule {
 public:
  LinearImpl(int64_t ins, int64_t outs) : LinearImpl(torch::nn::LinearOptions(ins, outs)) {}
  explicit LinearImpl(const torch::nn::LinearOptions& options);
  // What a module of torch computes with a weight [outs, ins], by a recipe and without a bias; the
  // weight stays the module's.
  explicit LinearImpl(torch::Tensor other);

  torch::Tensor forward(const torch::Tensor& x) override;  // x: [..., ins]
  // x W̃ᵀ with some rows of the weight, of a layer without a bias. Each call within a step may have
  // other rows and another x (layer/linear_layer.h).
  torch::Tensor forward_some(const torch::Tensor& x, const Outputs& some);

  LinearLayer& layer() override { return *layer_; }
  const LinearLayer& layer() const override { return *layer_; }

 private:
  void require_features(const torch::Tensor& x) const;
  torch::Tensor packed_forward(const torch::Tensor& x, const Outputs& some) override;
  torch::Tensor packed_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                     const Outputs& some) override;
  torch::Tensor packed_backward_weight(const torch::Tensor& g, const torch::Tensor& x,
                                       const Pass& pass, const Outputs& some) override;
  torch::Tensor plain_forward(const torch::Tensor& x, const torch::Tensor& w) override;
  torch::Tensor plain_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                    const torch::Tensor& w) override;
  torch::Tensor plain_backward_weight(const torch::Tensor& g, const torch::Tensor& x) override;
  torch::Tensor bias_gradient(const torch::Tensor& g) const override;
  torch::Tensor rows_of(const torch::Tensor& x) const override;
  int64_t tokens_of(const torch::Tensor& x) const override;
  torch::Tensor sample_scales_of(const torch::Tensor& g,
                                 const SampleOptions& options) const override;

  std::unique_ptr<LinearLayer> layer_;
};

TORCH_MODULE(Linear);

}  // namespace weft
