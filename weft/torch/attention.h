// Multi-head attention for models: kernel/attention/attention.h with autograd.
//
//   out = softmax(q kᵀ / √head_width) v, for each head, of the tokens up to its own if causal
//
// Contiguous or not, fp32 and bf16 tensors of the CPU run on the kernels, and the graph keeps qkv
// and two numbers per row. bf16 is kept as bf16, computed in fp32, and rounded at the end. Others
// run the formula in torch operators, which keep the probabilities. First derivatives only on the
// kernels: with create_graph they throw Error.
#pragma once

#include <torch/types.h>

namespace weft {

// qkv: [batch, tokens, 3 · width], q, then k, then v, each [heads, width / heads];
// the result: [batch, tokens, width].
torch::Tensor attention(const torch::Tensor& qkv, int64_t heads, bool causal);

}  // namespace weft
