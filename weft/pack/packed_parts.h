// The two tensors of a packed weight in a file of the weft format: what readers and writers share.
#pragma once

#include <string_view>
#include <vector>

#include "weft/checkpoint/header.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

inline constexpr std::string_view kValuesEnding = ".weft_values";
inline constexpr std::string_view kIndicesEnding = ".weft_indices";

// The stream pack of a weight of these dims whose every group is full. Throws Error if it
// overflows.
PackHeader packed_header_of(const std::vector<int64_t>& dims, const Pattern& pattern,
                            Precision type);

// The tensors of the weight `name`; their offsets are not set.
TensorInfo values_info(const std::string& name, const PackHeader& header, Dtype dtype);
TensorInfo indices_info(const std::string& name, const PackHeader& header);

}  // namespace weft
