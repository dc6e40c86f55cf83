#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "weft/torch/bf16_functions.h"
#include "weft/torch/model.h"
#include "weft/torch/tensor_math.h"
#include "weft/torch/transformer.h"

namespace weft {
namespace {

// Bytes ─► tokens + positions ─► blocks ─► norm ─► head. The names of its tensors are those that
// weft/decode reads.
class Gpt : public Model {
 public:
  Gpt(const RunOptions& options, const ModelShape& shape)
      : precision_(parse_precision(options.precision)) {
    const int64_t width = options.width;
    tokens_ = register_module("tokens", torch::nn::Embedding(shape.classes, width));
    positions_ = register_module("positions", torch::nn::Embedding(options.context, width));
    for (int64_t i = 0; i < options.depth; ++i) {
      blocks_->push_back(std::make_shared<TransformerBlock>(
          BlockOptions{width, 4 * width, options.heads, /*causal=*/true}));
    }
    register_module("blocks", blocks_);
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    head_ =
        register_module("head", Linear(torch::nn::LinearOptions(width, shape.classes).bias(false)));
    init_transformer(*this, options.depth);
  }

  torch::Tensor forward(const torch::Tensor& x) override {  // [batch, tokens]
    require_tokens(x);
    torch::Tensor h = tokens_->forward(x) + positions_->weight.slice(0, 0, x.size(1));
    if (precision_ == Precision::kBf16) h = h.to(torch::kBFloat16);
    for (const auto& block : *blocks_) h = block->as<TransformerBlock>()->forward(h);
    return head_->forward(layer_norm(norm_, h));
  }

 private:
  void require_tokens(const torch::Tensor& x) const {
    const int64_t context = positions_->weight.size(0), kinds = tokens_->weight.size(0);
    WEFT_CHECK(
        x.defined() && x.scalar_type() == torch::kLong && x.dim() == 2 && x.size(1) <= context,
        "gpt: an input of {}{}: accepted are 64-bit integers of [batch, up to {} tokens]",
        x.defined() ? fmt::format("{} ", c10::toString(x.scalar_type())) : "", sizes_text(x),
        context);
    if (x.numel() == 0) return;
    const int64_t lowest = x.min().item<int64_t>(), highest = x.max().item<int64_t>();
    WEFT_CHECK(lowest >= 0 && highest < kinds, "gpt: a token is {}: accepted are 0 to {}",
               lowest < 0 ? lowest : highest, kinds - 1);
  }

  Precision precision_;
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::ModuleList blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_gpt(const RunOptions& options, const ModelShape& shape) {
  return std::make_shared<Gpt>(options, shape);
}

}  // namespace weft
