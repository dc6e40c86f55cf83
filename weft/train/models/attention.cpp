#include "weft/train/models/attention.h"
#include <torch/torch.h>
namespace weft {
torch::Tensor attention(const torch::Tensor& qkv, int64_t heads, bool causal) {
  const auto b = qkv.size(0), t = qkv.size(1), w = qkv.size(2) / 3;
  auto p = qkv.view({b, t, 3, heads, w / heads}).permute({2, 0, 3, 1, 4});
  auto s = torch::matmul(p[0], p[1].transpose(-1, -2)) / std::sqrt(double(w / heads));
  if (causal) s = s + torch::full({t, t}, -1e30).triu(1);
  return torch::matmul(torch::softmax(s, -1), p[2]).transpose(1, 2).reshape({b, t, w});
}
}
