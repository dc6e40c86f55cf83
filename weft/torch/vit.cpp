#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "weft/torch/bf16_functions.h"
#include "weft/torch/model.h"
#include "weft/torch/tensor_math.h"
#include "weft/torch/transformer.h"

namespace weft {
namespace {

// Patches ─► embed + positions ─► blocks ─► norm ─► mean over patches ─► head
class Vit : public Model {
 public:
  Vit(const RunOptions& options, const ModelShape& shape) : patch_(options.patch), image_(shape) {
    WEFT_CHECK(shape.height % patch_ == 0 && shape.width % patch_ == 0,
               "images of {}x{} are not a multiple of patches of {}x{}", shape.height, shape.width,
               patch_, patch_);
    const int64_t width = options.width;
    const int64_t patches = (shape.height / patch_) * (shape.width / patch_);
    embed_ = register_module("embed", Linear(shape.channels * patch_ * patch_, width));
    positions_ = register_module("positions", torch::nn::Embedding(patches, width));
    for (int64_t i = 0; i < options.depth; ++i) {
      blocks_.push_back(register_module(
          fmt::format("block{}", i),
          std::make_shared<TransformerBlock>(BlockOptions{width, 4 * width, options.heads})));
    }
    norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    head_ = register_module("head", Linear(width, shape.classes));
    init_transformer(*this, options.depth);
  }

  torch::Tensor forward(const torch::Tensor& x) override {
    WEFT_CHECK(x.defined() && x.dim() == 4 && x.size(1) == image_.channels &&
                   x.size(2) == image_.height && x.size(3) == image_.width,
               "vit: an input of {}: accepted is [batch, {}, {}, {}]", sizes_text(x),
               image_.channels, image_.height, image_.width);
    const torch::Tensor embedded = embed_->forward(patches_of(x));
    torch::Tensor h = (embedded + positions_->weight).to(embedded.scalar_type());
    for (const auto& block : blocks_) h = block->forward(h);
    return head_->forward(widened(layer_norm(norm_, h)).mean(1));
  }

 private:
  // [batch, channels, height, width] to [batch, patches, channels * patch * patch]
  torch::Tensor patches_of(const torch::Tensor& x) const {
    const int64_t rows = x.size(2) / patch_, cols = x.size(3) / patch_;
    return x.reshape({x.size(0), x.size(1), rows, patch_, cols, patch_})
        .permute({0, 2, 4, 1, 3, 5})
        .reshape({x.size(0), rows * cols, x.size(1) * patch_ * patch_});
  }

  int64_t patch_;
  ModelShape image_;
  Linear embed_{nullptr};
  torch::nn::Embedding positions_{nullptr};
  std::vector<std::shared_ptr<TransformerBlock>> blocks_;
  torch::nn::LayerNorm norm_{nullptr};
  Linear head_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_vit(const RunOptions& options, const ModelShape& shape) {
  return std::make_shared<Vit>(options, shape);
}

}  // namespace weft
