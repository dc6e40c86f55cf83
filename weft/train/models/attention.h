#pragma once
#include <torch/types.h>
namespace weft {
torch::Tensor attention(const torch::Tensor& qkv, int64_t heads, bool causal);
}
