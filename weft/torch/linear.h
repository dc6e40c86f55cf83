// Linear: torch::nn::Linear that trains by a recipe (layer.h). Takes the same options and begins
// with the same weights for the same seed of torch.
#pragma once

#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include "weft/torch/layer.h"

namespace weft {

class LinearImpl : public Layer {
 public:
  LinearImpl(int64_t ins, int64_t outs) : LinearImpl(torch::nn::LinearOptions(ins, outs)) {}
  explicit LinearImpl(const torch::nn::LinearOptions& options);
  // What a torch layer computes without its bias, by a recipe; with its weight, which stays its
  // own.
  explicit LinearImpl(const torch::nn::LinearImpl& other);

  torch::Tensor forward(const torch::Tensor& x) override;  // x: [..., ins]

  WeightShape weight_shape() const override { return {weight.size(0), weight.size(1), 1}; }

 private:
  void reset_products(std::shared_ptr<Planner> planner, int micro_batches) override;
  LayerProducts& products() override { return *products_; }
  torch::Tensor packed_forward(const torch::Tensor& x) override;
  torch::Tensor packed_backward_data(const torch::Tensor& g, const torch::Tensor& x) override;
  torch::Tensor packed_backward_weight(const torch::Tensor& g, const torch::Tensor& x,
                                       const std::optional<Sampling>& sampling) override;
  torch::Tensor plain_forward(const torch::Tensor& x, const torch::Tensor& w) override;
  torch::Tensor plain_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                    const torch::Tensor& w) override;
  torch::Tensor plain_backward_weight(const torch::Tensor& g, const torch::Tensor& x) override;
  torch::Tensor bias_gradient(const torch::Tensor& g) const override;
  torch::Tensor rows_of(const torch::Tensor& x) const override;
  torch::Tensor sample_scales_of(const torch::Tensor& g,
                                 const SampleOptions& options) const override;

  std::unique_ptr<LinearProducts> products_;
};

TORCH_MODULE(Linear);

}  // namespace weft
