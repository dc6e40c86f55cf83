// Small operations on tensors that both paths of a layer share.
#pragma once

#include <torch/types.h>

#include "weft/core/mask.h"
#include "weft/estimate/fp8.h"

namespace weft {

// 1 and 0 in the shape, dtype and device of `like`, which has mask.rows() rows.
torch::Tensor mask_tensor(const Mask& mask, const torch::Tensor& like);

// The nearest FP8 numbers, scaled by the largest magnitude (estimate/fp8.h), as a new tensor.
torch::Tensor rounded_to_fp8(const torch::Tensor& x, Fp8 format);

}  // namespace weft
