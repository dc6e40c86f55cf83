// Functions of activations in bf16 that torch does not have, or has slowly. They compute in fp32,
// round at the end, and the graph keeps their input as bf16. Other dtypes go to torch. First
// derivatives only in bf16: with create_graph they throw Error.
#pragma once

#include <torch/nn/modules/normalization.h>

namespace weft {

//   y = (x − mean) · rstd · weight + bias      mean and 1/sd of each row of x
//
// torch's own takes bf16 only with parameters in bf16; here parameters and statistics are fp32.
torch::Tensor layer_norm(torch::nn::LayerNorm& norm, const torch::Tensor& x);

//   y = x Φ(x)
//
// torch's own in bf16 takes 8 ms for 1.2 million numbers forward and 12 back, in fp32 1.5 and 1.9
// (libtorch 1.13, one thread of a Zen 3).
torch::Tensor gelu(const torch::Tensor& x);

}  // namespace weft
