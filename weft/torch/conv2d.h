// Conv2d: torch::nn::Conv2d that trains by a recipe (layer_module.h). Groups run along the input channels
// at one tap, tiles over (outputs, inputs) at one tap; samples of the gradient run along the
// positions of one image.
//
// Padding: numbers, "valid", and "same" with an odd kernel (or dilation · (kernel − 1) even), all
// with zeros. Others are refused; pad the input yourself.
#pragma once

#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>

#include "weft/layer/conv_layer.h"
#include "weft/torch/layer_module.h"

namespace weft {

class Conv2dImpl : public LayerModule {
 public:
  explicit Conv2dImpl(const torch::nn::Conv2dOptions& options);
  // What a torch layer computes without its bias, by a recipe; with its weight, which stays its
  // own.
  explicit Conv2dImpl(const torch::nn::Conv2dImpl& other);

  static torch::nn::Conv2dOptions options_of(const torch::nn::Conv2dImpl& layer);
  // Empty, or why a layer of these options cannot be a Conv2d of weft.
  static std::string cannot_take(const torch::nn::Conv2dOptions& options);

  torch::Tensor forward(const torch::Tensor& x) override;  // x: [images, ins, height, width]

  ConvLayer& layer() override { return *layer_; }
  const ConvLayer& layer() const override { return *layer_; }

 private:
  void init(const torch::nn::Conv2dOptions& options);
  torch::Tensor packed_forward(const torch::Tensor& x, const Outputs&) override;
  torch::Tensor packed_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                     const Outputs&) override;
  torch::Tensor packed_backward_weight(const torch::Tensor& g, const torch::Tensor& x,
                                       const Pass& pass, const Outputs&) override;
  torch::Tensor plain_forward(const torch::Tensor& x, const torch::Tensor& w) override;
  torch::Tensor plain_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                    const torch::Tensor& w) override;
  torch::Tensor plain_backward_weight(const torch::Tensor& g, const torch::Tensor& x) override;
  torch::Tensor bias_gradient(const torch::Tensor& g) const override;
  torch::Tensor rows_of(const torch::Tensor& x) const override;
  int64_t tokens_of(const torch::Tensor& x) const override;
  torch::Tensor sample_scales_of(const torch::Tensor& g,
                                 const SampleOptions& options) const override;

  torch::nn::Conv2dOptions options_;
  std::unique_ptr<ConvLayer> layer_;
};

TORCH_MODULE(Conv2d);

}  // namespace weft
