// A stand-in for the weight of a torch layer, so that the layer's own code computes by a recipe.
//
// C++ code calls torch::nn::Linear by its type, so the module cannot be replaced. But it multiplies
// with its member `weight`, and torch's dispatcher decides what a multiplication does. So
// sparsify writes a tensor into that member that has no storage, only a reference to a weft layer
// (RoutedWeight), and every way in which torch multiplies with it goes to that layer:
//
//   addmm(b, x, wᵀ), x.matmul(wᵀ), linear(x, w, b), conv2d(x, w, b, ...)   ->   layer.forward(x) +
//   b
//
// A slice of its rows is a stand-in too, for these rows: attention takes q, k and v out of one weight.
//
// The parameter itself stays in the module under its name, for optimisers and files. Anything else
// that is done to the stand-in is an Error that says so.
#pragma once

#include <torch/types.h>

#include <memory>

namespace weft {

class LayerModule;

// layer: without a bias of its own. Keeps it alive.
torch::Tensor routed_weight(std::shared_ptr<LayerModule> layer);

}  // namespace weft
