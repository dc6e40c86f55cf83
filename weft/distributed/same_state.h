// What must be equal on all ranks after every step: weights, and what recipes derive from them.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>

#include "weft/distributed/process_group.h"

namespace weft {

// Throws Error, on every rank, that names the first layer or parameter that differs, and the rank.
// All ranks must call it. Cost: a checksum of everything, and a sum over ranks of 8 bytes per
// parameter and rank.
void require_same_state(torch::nn::Module& model, ProcessGroup& ranks, int64_t step);

}  // namespace weft
