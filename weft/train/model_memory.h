// What a model needs before its first step, known before any of it is allocated.
#pragma once

#include <cstdint>

#include "weft/torch/model.h"

namespace weft {

// How many parameters make_model would make. The count of every model is quadratic in the width and
// linear in the depth, so that six small models determine it; heads do not change it.
double parameter_count(const RunOptions& options, const ModelShape& shape);

enum class ModelUse : uint8_t { kTraining, kEvaluation };

// Throws Error if the weights, and in training their gradients and the optimiser's moments, alone
// exceed the memory of this machine. Activations and packed weights come on top, so what passes may
// still be too large. options: resolved.
void require_memory(const RunOptions& options, const ModelShape& shape, ModelUse use);

}  // namespace weft
