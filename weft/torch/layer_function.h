// The autograd of a layer.
//
//   y  = x W̃ᵀ + b        dx = g W̃'        dW = (a sample of) gᵀ x        db = Σ g
//
// W̃, W̃' and the sample are those of the recipe (layer/layer.h); the gradient of W̃ goes straight
// through to W. Scores, of recipes that learn some, get theirs from dW.
#pragma once

#include <torch/types.h>

#include "weft/torch/layer_module.h"

namespace weft {

torch::Tensor apply_layer(const torch::Tensor& x, LayerModule& module, const Outputs& some);

}  // namespace weft
