#include "weft/torch/transformer.h"

#include <torch/nn/init.h>

#include <cmath>

#include "weft/torch/attention.h"
#include "weft/torch/bf16_functions.h"

namespace weft {
namespace {

torch::nn::LayerNorm norm_of(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}));
}

const BlockOptions& checked(const BlockOptions& options) {
  WEFT_CHECK(options.heads >= 1 && options.width % options.heads == 0,
             "width {} is not a multiple of {} heads", options.width, options.heads);
  return options;
}

}  // namespace

SelfAttention::SelfAttention(const BlockOptions& options)
    : options_(checked(options)),
      qkv_(register_module("qkv", Linear(options.width, 3 * options.width))),
      proj_(register_module("proj", Linear(options.width, options.width))) {}

torch::Tensor SelfAttention::forward(const torch::Tensor& x) {
  return proj_->forward(attention(qkv_->forward(x), options_.heads, options_.causal));
}

TransformerBlock::TransformerBlock(const BlockOptions& options)
    : norm1_(register_module("norm1", norm_of(options.width))),
      attention_(register_module("attention", std::make_shared<SelfAttention>(options))),
      norm2_(register_module("norm2", norm_of(options.width))),
      fc1_(register_module("fc1", Linear(options.width, options.hidden))),
      fc2_(register_module("fc2", Linear(options.hidden, options.width))) {}

torch::Tensor TransformerBlock::forward(const torch::Tensor& x) {
  const torch::Tensor h = x + attention_->forward(layer_norm(norm1_, x));
  return h + fc2_->forward(weft::gelu(fc1_->forward(layer_norm(norm2_, h))));
}

void init_transformer(torch::nn::Module& model, int64_t blocks) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.named_parameters()) {
    const std::string& name = parameter.key();
    if (name.find("norm") != std::string::npos) continue;  // torch's 1 and 0
    if (parameter.value().dim() < 2) {
      parameter.value().zero_();
      continue;
    }
    const bool into_residual = name.ends_with("proj.weight") || name.ends_with("fc2.weight");
    const double sd = into_residual ? 0.02 / std::sqrt(2.0 * static_cast<double>(blocks)) : 0.02;
    parameter.value().normal_(0.0, sd);
  }
}

}  // namespace weft
