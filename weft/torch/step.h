// One optimiser step of a model with weft layers. Steps must be taken through it.
//
//   loss.backward();                     once per micro-batch
//   torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
//   weft::step(*model, optimizer);
//
// Adds the decay of each recipe to the clipped gradients, steps the optimiser, counts the step and
// brings masks up to date that follow the weights, of the layers that this optimiser trains. What
// comes every few steps waits for the next training pass (layer_module.h). Layers whose
// tied weight it moved are updated too. Data-parallel runs reduce their gradients
// before.
//
// With moment=frozen in its recipe, the second moment of a layer's weights stays as it is while the
// layer is sparse; that needs an optimiser of weft (adamw.h).
//
// Throws Error, before anything has changed, if the optimiser trains the weights of an lbc layer
// and not its scores (it was made before sparsify, which adds them), or cannot freeze a moment.
#pragma once

#include <torch/optim/optimizer.h>

#include "weft/torch/layer_module.h"

namespace weft {

void step(torch::nn::Module& model, torch::optim::Optimizer& optimizer);

// After loading or editing weights by other means than step().
void weights_changed(torch::nn::Module& model);

}  // namespace weft
