// Row orders (core/row_order.h) in files: an I64 tensor [outs] beside the weight, which the promise
// of the weight names (sparsity.h).
//
//   fc1.weight      F32 [outs, ins]      "weft.sparsity": {"fc1.weight": {"pattern": "2:4x16",
//   fc1.row_order   I64 [outs]                         "axis": "in", "row_order": "fc1.row_order"}}
#pragma once

#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"

namespace weft {

// "fc1.row_order" for "fc1.weight"; another name gets the ending.
std::string row_order_name(const std::string& weight);

// The order of a promised tensor of `outs` rows; empty if the promise names none, or nothing is
// shared. Throws Error that names the file and the tensor if it is missing or malformed.
std::vector<int64_t> read_row_order(const Checkpoint& checkpoint, const Promise& promise,
                                    int64_t outs);

}  // namespace weft
