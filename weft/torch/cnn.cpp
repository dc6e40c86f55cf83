#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>

#include "weft/torch/batch_norm.h"
#include "weft/torch/conv2d.h"
#include "weft/torch/linear.h"
#include "weft/torch/model.h"
#include "weft/torch/tensor_math.h"

namespace weft {
namespace {

Conv2d convolution(int64_t ins, int64_t outs, int64_t kernel, int64_t stride) {
  return Conv2d(torch::nn::Conv2dOptions(ins, outs, kernel)
                    .stride(stride)
                    .padding(kernel / 2)
                    .bias(false));  // batch normalisation follows
}

// x ─► conv1 ─► norm1 ─► ReLU ─► conv2 ─► norm2 ─► + ─► ReLU
// └──────────────── (shortcut, if the shape changes) ┘
class Residual : public torch::nn::Module {
 public:
  Residual(int64_t ins, int64_t outs, int64_t stride)
      : conv1_(register_module("conv1", convolution(ins, outs, 3, stride))),
        norm1_(register_module("norm1", torch::nn::BatchNorm2d(outs))),
        conv2_(register_module("conv2", convolution(outs, outs, 3, 1))),
        norm2_(register_module("norm2", torch::nn::BatchNorm2d(outs))) {
    if (ins == outs && stride == 1) return;
    shortcut_ = register_module("shortcut", convolution(ins, outs, 1, stride));
    shortcut_norm_ = register_module("shortcut_norm", torch::nn::BatchNorm2d(outs));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = torch::relu(batch_norm(norm1_, conv1_->forward(x)));
    const torch::Tensor way = shortcut_ ? batch_norm(shortcut_norm_, shortcut_->forward(x)) : x;
    return torch::relu(batch_norm(norm2_, conv2_->forward(h)) + way);
  }

 private:
  Conv2d conv1_;
  torch::nn::BatchNorm2d norm1_;
  Conv2d conv2_;
  torch::nn::BatchNorm2d norm2_;
  Conv2d shortcut_{nullptr};
  torch::nn::BatchNorm2d shortcut_norm_{nullptr};
};

// A stem, then stages of residual blocks: the width doubles and the image halves from one to the
// next; the mean over what is left goes to the head.
class Cnn : public Model {
 public:
  struct Form {
    int stages;
    int64_t stem_stride;
  };

  Cnn(const Form& form, const RunOptions& options, const ModelShape& shape)
      : stem_(register_module("stem",
                              convolution(shape.channels, options.width, 3, form.stem_stride))),
        norm_(register_module("norm", torch::nn::BatchNorm2d(options.width))) {
    int64_t channels = options.width;
    for (int stage = 0; stage < form.stages; ++stage) {
      const int64_t outs = options.width << stage;
      for (int64_t i = 0; i < options.depth; ++i) {
        const int64_t stride = stage > 0 && i == 0 ? 2 : 1;
        blocks_.push_back(register_module(fmt::format("stage{}_{}", stage, i),
                                          std::make_shared<Residual>(channels, outs, stride)));
        channels = outs;
      }
    }
    head_ = register_module("head", Linear(channels, shape.classes));
  }

  torch::Tensor forward(const torch::Tensor& x) override {
    torch::Tensor h = torch::relu(batch_norm(norm_, stem_->forward(x)));
    for (const auto& block : blocks_) h = block->forward(h);
    return head_->forward(widened(h).mean({2, 3}));
  }

 private:
  Conv2d stem_;
  torch::nn::BatchNorm2d norm_;
  std::vector<std::shared_ptr<Residual>> blocks_;
  Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_cnn(const RunOptions& options, const ModelShape& shape) {
  return std::make_shared<Cnn>(Cnn::Form{.stages = 3, .stem_stride = 2}, options, shape);
}

// As ResNet-18 is trained on images of 32 x 32: the stem keeps their size.
std::shared_ptr<Model> make_resnet18(const RunOptions& options, const ModelShape& shape) {
  return std::make_shared<Cnn>(Cnn::Form{.stages = 4, .stem_stride = 1}, options, shape);
}

}  // namespace weft
