// Batch normalisation that sees the batch of all ranks (batch_share.h).
//
//   y = (x - mean) / sqrt(var + eps) · w + b       mean, var: of all samples of all ranks
//
// Without a share, or in evaluation mode, it is torch's own, to the bit. With one it costs a sum of
// 2 · channels numbers over the ranks in the forward pass, and another in the backward pass, which
// all ranks wait for.
#pragma once

#include <torch/nn/modules/batchnorm.h>

namespace weft {

// x: [images, channels, height, width]
torch::Tensor batch_norm(torch::nn::BatchNorm2d& norm, const torch::Tensor& x);

}  // namespace weft
