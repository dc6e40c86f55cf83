// The state of a layer (layer/state_arrays.h) as tensors, for the buffers of a module; and back.
#pragma once

#include <torch/types.h>

#include <string>

#include "weft/layer/state_arrays.h"

namespace weft {

torch::Tensor empty_words();  // [0], 64-bit integers
torch::Tensor tensor_of(const StateArray& array);
// Throws Error, which begins with `context`, if the tensor is not 64-bit integers on the CPU.
StateArray array_of(const torch::Tensor& tensor, std::string name, const std::string& context);

}  // namespace weft
