// Model: a network that the trainer can train. It maps a batch of inputs to scores of classes; the
// loss is the cross-entropy of its softmax with the targets.
//
//   mlp       hidden layers of one width, ReLU
//   cnn       a small residual network with batch normalisation
//   resnet18  the same in the sizes of ResNet-18, for small images
//   vit       a transformer over patches of the image
//   gpt       a transformer over bytes that says the next one
//
// In bf16 (options.precision) activations are bf16 from the first layer on, scores too; parameters,
// statistics of norms and means over positions are fp32.
//
// The products of all of them are layers of weft (Linear, Conv2d), dense until sparsify says
// otherwise; attention runs on weft's dense path.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <memory>

#include "weft/run/run_options.h"

namespace weft {

class Model : public torch::nn::Module {
 public:
  // x: what the data gives, [batch, ...]; returns [batch, classes] or [batch, tokens, classes].
  virtual torch::Tensor forward(const torch::Tensor& x) = 0;
};

// What a model is made for.
struct ModelShape {
  int64_t channels = 0;  // of images; 0: the data is text
  int64_t height = 0;
  int64_t width = 0;
  int64_t classes = 0;  // or kinds of tokens
};

// Sizes come from the options, which must be resolved; initial weights from torch's random numbers
// after torch::manual_seed(options.seed). Throws Error if the sizes do not go together.
std::shared_ptr<Model> make_model(const RunOptions& options, const ModelShape& shape);

std::shared_ptr<Model> make_mlp(const RunOptions& options, const ModelShape& shape);
std::shared_ptr<Model> make_cnn(const RunOptions& options, const ModelShape& shape);
std::shared_ptr<Model> make_resnet18(const RunOptions& options, const ModelShape& shape);
std::shared_ptr<Model> make_vit(const RunOptions& options, const ModelShape& shape);
std::shared_ptr<Model> make_gpt(const RunOptions& options, const ModelShape& shape);

}  // namespace weft
