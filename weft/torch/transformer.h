// The block that vit and gpt are made of, pre-norm:
//
//   x += attention(norm1(x))      qkv ─► softmax(q kᵀ / √d) v ─► proj, in `heads` heads
//   x += fc2(gelu(fc1(norm2(x))))
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/normalization.h>

#include "weft/torch/linear.h"

namespace weft {

struct BlockOptions {
  int64_t width = 0;
  int64_t hidden = 0;  // of the feed-forward part
  int64_t heads = 1;   // divide the width
  bool causal = false;
};

class SelfAttention : public torch::nn::Module {
 public:
  explicit SelfAttention(const BlockOptions& options);
  torch::Tensor forward(const torch::Tensor& x);  // [batch, tokens, width]

 private:
  BlockOptions options_;
  Linear qkv_, proj_;
};

class TransformerBlock : public torch::nn::Module {
 public:
  explicit TransformerBlock(const BlockOptions& options);
  torch::Tensor forward(const torch::Tensor& x);  // [batch, tokens, width]

 private:
  torch::nn::LayerNorm norm1_;
  std::shared_ptr<SelfAttention> attention_;
  torch::nn::LayerNorm norm2_;
  Linear fc1_, fc2_;
};

// GPT-2's initial weights: normal with sd 0.02, biases 0; projections back into the residual stream
// smaller by √(2 · blocks), so that it does not grow with the depth.
void init_transformer(torch::nn::Module& model, int64_t blocks);

}  // namespace weft
