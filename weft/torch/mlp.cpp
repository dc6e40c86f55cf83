#include <torch/nn/functional/activation.h>

#include "weft/torch/linear.h"
#include "weft/torch/model.h"
#include "weft/torch/tensor_math.h"

namespace weft {
namespace {

// pixels ─► hidden.0 ─► ReLU ─► ... ─► head
class Mlp : public Model {
 public:
  Mlp(const RunOptions& options, const ModelShape& shape) {
    int64_t ins = shape.channels * shape.height * shape.width;
    for (int64_t i = 0; i < options.depth; ++i) {
      hidden_.push_back(register_module(fmt::format("hidden{}", i), Linear(ins, options.width)));
      ins = options.width;
    }
    head_ = register_module("head", Linear(ins, shape.classes));
  }

  torch::Tensor forward(const torch::Tensor& x) override {
    WEFT_CHECK(x.defined() && x.dim() >= 2, "mlp: an input of {}: accepted is [batch, ...]",
               sizes_text(x));
    torch::Tensor h = x.flatten(1);
    for (Linear& layer : hidden_) h = torch::relu(layer->forward(h));
    return head_->forward(h);
  }

 private:
  std::vector<Linear> hidden_;
  Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_mlp(const RunOptions& options, const ModelShape& shape) {
  return std::make_shared<Mlp>(options, shape);
}

}  // namespace weft
