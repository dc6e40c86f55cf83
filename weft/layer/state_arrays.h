// LayerState as named arrays of 64-bit integers, to be saved (buffers of a module, a file); and
// back, with everything checked that could come from a damaged file. `context` begins the message
// of an Error.
//
//   mask, backward_mask      [outs, words]   bits as in Mask, the first column lowest; [0]: none
//   permutation, row_order   [outs], or [0]
//   alive                    [cells · groups, words], or [0]
//   counters                 [10]   version, begun, step, call, seed, layer, scaled, the bits of β,
//                                   a hash of the recipe and pattern that they belong to, refreshed
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/recipe/layer_state.h"

namespace weft {

struct StateArray {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<int64_t> values;
};

StateArray state_array(std::string name, const Mask& mask);
StateArray state_array(std::string name, std::vector<int64_t> values);
// An empty array is a mask without rows.
Mask mask_from(const StateArray& array, int64_t rows, int64_t cols, const std::string& context);
std::vector<int64_t> permutation_from(const StateArray& array, int64_t outs,
                                      const std::string& context);

// In the order of the table above. owner: whose state it is, "s-ste at 2:4".
inline constexpr std::string_view kStateNames[] = {"mask",      "backward_mask", "permutation",
                                                   "row_order", "alive",         "counters"};
std::vector<StateArray> state_arrays(const LayerState& state, std::string_view owner);
inline constexpr std::string_view kDenseOwner = "dense";

// Whether they are of a layer that its recipe leaves dense, which has nothing for another one.
bool is_dense_state(std::span<const StateArray> arrays);

struct StateShape {
  WeightShape weights;
  int64_t alive_rows = 0, alive_cols = 0;  // 0: the recipe has no candidates
};
// Throws Error if an array is missing, malformed, or of another owner.
LayerState state_from(std::span<const StateArray> arrays, const StateShape& shape,
                      std::string_view owner, const std::string& context);

}  // namespace weft
