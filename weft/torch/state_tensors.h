// LayerState as tensors of 64-bit integers, for the buffers of a module; and back, with everything
// checked that could come from a damaged file. `context` begins the message of an Error.
//
//   mask       [rows, words]   bits as in Mask, the first column lowest
//   counters   [10]            version, begun, step, call, seed, layer, scaled, the bits of β,
//                              a hash of the recipe and pattern that they belong to, refreshed
#pragma once

#include <torch/types.h>

#include <string>
#include <string_view>

#include "weft/recipe/layer_state.h"

namespace weft {

torch::Tensor empty_words();  // [0]
torch::Tensor words_of(const Mask& mask);
torch::Tensor words_of(const std::vector<int64_t>& values);
torch::Tensor counters_of(const LayerState& state, std::string_view owner);

// An empty tensor is a mask without rows.
Mask mask_from(const torch::Tensor& words, int64_t rows, int64_t cols, const std::string& context);
std::vector<int64_t> permutation_from(const torch::Tensor& words, int64_t outs,
                                      const std::string& context);
// All but the masks and the permutation.
LayerState state_from_counters(const torch::Tensor& counters, std::string_view owner,
                               const std::string& context);

}  // namespace weft
