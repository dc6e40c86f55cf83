#include "bench/step_network.h"

#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "weft/run/run_options.h"
#include "weft/torch/model.h"
#include "weft/torch/transformer.h"

namespace weft::bench {
namespace {

constexpr int64_t kClasses = 10, kColours = 3;

template <typename Network>
StepNetwork network_of(std::shared_ptr<Network> module) {
  return {module, [module](const torch::Tensor& x) { return module->forward(x); }};
}

class PlainBlock : public torch::nn::Module {
 public:
  explicit PlainBlock(const BlockShape& shape) : shape_(shape) {
    const auto norm = [&] {
      return torch::nn::LayerNorm(torch::nn::LayerNormOptions({shape.width}));
    };
    norm1_ = register_module("norm1", norm());
    norm2_ = register_module("norm2", norm());
    const auto attention = register_module("attention", std::make_shared<torch::nn::Module>());
    qkv_ = attention->register_module("qkv", torch::nn::Linear(shape.width, 3 * shape.width));
    proj_ = attention->register_module("proj", torch::nn::Linear(shape.width, shape.width));
    fc1_ = register_module("fc1", torch::nn::Linear(shape.width, shape.hidden));
    fc2_ = register_module("fc2", torch::nn::Linear(shape.hidden, shape.width));
    mask_ = torch::full({shape.context, shape.context}, -INFINITY).triu(1);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const int64_t batch = x.size(0), tokens = x.size(1), width = x.size(2);
    const torch::Tensor parts = qkv_(norm1_(x))
                                    .view({batch, tokens, 3, shape_.heads, width / shape_.heads})
                                    .permute({2, 0, 3, 1, 4});
    const double scale = 1.0 / std::sqrt(static_cast<double>(width / shape_.heads));
    const torch::Tensor scores =
        torch::matmul(parts[0], parts[1].transpose(-1, -2)) * scale + mask_;
    const torch::Tensor mixed = torch::matmul(torch::softmax(scores, -1), parts[2]);
    const torch::Tensor h = x + proj_(mixed.transpose(1, 2).reshape({batch, tokens, width}));
    return h + fc2_(torch::gelu(fc1_(norm2_(h))));
  }

 private:
  BlockShape shape_;
  torch::nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  torch::nn::Linear qkv_{nullptr}, proj_{nullptr}, fc1_{nullptr}, fc2_{nullptr};
  torch::Tensor mask_;
};

torch::nn::Conv2d plain_convolution(int64_t ins, int64_t outs, int64_t kernel, int64_t stride) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(ins, outs, kernel).stride(stride).padding(kernel / 2).bias(false));
}

class PlainResidual : public torch::nn::Module {
 public:
  PlainResidual(int64_t ins, int64_t outs, int64_t stride)
      : conv1_(register_module("conv1", plain_convolution(ins, outs, 3, stride))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(outs))),
        conv2_(register_module("conv2", plain_convolution(outs, outs, 3, 1))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(outs))) {
    if (ins == outs && stride == 1) return;
    shortcut_ = register_module("shortcut", plain_convolution(ins, outs, 1, stride));
    shortcut_norm_ = register_module("shortcut_norm", torch::nn::BatchNorm2d(outs));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = torch::relu(norm1_(conv1_(x)));
    const torch::Tensor way = shortcut_ ? shortcut_norm_(shortcut_(x)) : x;
    return torch::relu(norm2_(conv2_(h)) + way);
  }

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  torch::nn::Conv2d shortcut_{nullptr};
  torch::nn::BatchNorm2d shortcut_norm_{nullptr};
};

class PlainResnet : public torch::nn::Module {
 public:
  explicit PlainResnet(int64_t width)
      : stem_(register_module("stem", plain_convolution(kColours, width, 3, 1))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(width))) {
    int64_t channels = width;
    for (int stage = 0; stage < 4; ++stage) {
      for (int i = 0; i < 2; ++i) {
        const int64_t outs = width << stage, stride = stage > 0 && i == 0 ? 2 : 1;
        blocks_.push_back(register_module(fmt::format("stage{}_{}", stage, i),
                                          std::make_shared<PlainResidual>(channels, outs, stride)));
        channels = outs;
      }
    }
    head_ = register_module("head", torch::nn::Linear(channels, kClasses));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor h = torch::relu(norm_(stem_(x)));
    for (const auto& block : blocks_) h = block->forward(h);
    return head_(h.mean({2, 3}));
  }

 private:
  torch::nn::Conv2d stem_;
  torch::nn::BatchNorm2d norm_;
  std::vector<std::shared_ptr<PlainResidual>> blocks_;
  torch::nn::Linear head_{nullptr};
};

}  // namespace

std::string planned_layer(const StepShape& shape) {
  return std::holds_alternative<BlockShape>(shape) ? "fc1" : "stage1_1.conv1";
}

StepNetwork weft_network(const StepShape& shape, Precision precision) {
  torch::manual_seed(1);
  if (const auto* block = std::get_if<BlockShape>(&shape)) {
    return network_of(std::make_shared<TransformerBlock>(
        BlockOptions{block->width, block->hidden, block->heads, /*causal=*/true}));
  }
  const auto& resnet = std::get<ResnetShape>(shape);
  RunOptions options;
  options.model = "resnet18";
  options.width = resnet.width;
  options.precision = precision_name(precision);
  return network_of(make_model(options.resolved(), {kColours, resnet.size, resnet.size, kClasses}));
}

StepNetwork plain_network(const StepShape& shape) {
  if (const auto* block = std::get_if<BlockShape>(&shape)) {
    return network_of(std::make_shared<PlainBlock>(*block));
  }
  return network_of(std::make_shared<PlainResnet>(std::get<ResnetShape>(shape).width));
}

StepInputs step_inputs(const StepShape& shape, Precision precision) {
  torch::manual_seed(2);
  const auto dtype = precision == Precision::kFp32 ? torch::kFloat : torch::kBFloat16;
  if (const auto* block = std::get_if<BlockShape>(&shape)) {
    const std::vector<int64_t> sizes = {block->tokens / block->context, block->context,
                                        block->width};
    return {torch::randn(sizes).to(dtype).requires_grad_(true),
            (torch::randn(sizes) / static_cast<double>(block->tokens)).to(dtype)};
  }
  const auto& resnet = std::get<ResnetShape>(shape);
  return {torch::randn({resnet.images, kColours, resnet.size, resnet.size}).to(dtype),
          torch::randn({resnet.images, kClasses}) / static_cast<double>(resnet.images)};
}

}  // namespace weft::bench
