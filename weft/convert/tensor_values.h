// Tensors of a checkpoint by name, and their values.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"

namespace weft {

const ShardedTensor* find_tensor(const Checkpoint& checkpoint, const std::string& name);

// All values of a tensor that is_weight_dtype. Throws Error that names one that is not finite.
std::vector<double> read_values(const Checkpoint& checkpoint, const ShardedTensor& tensor);
// The reverse, rounded to its type. Throws Error that names the tensor if a value is too large for
// that.
void write_values(CheckpointWriter& writer, const ShardedTensor& tensor,
                  const std::vector<double>& values);

// Calls find_mask, or whatever else may meet an unusable weight, and names tensor and index if it
// does. `first_row`: the row of the tensor that the weights begin with.
void naming_weights(const Checkpoint& checkpoint, const ShardedTensor& tensor, int64_t first_row,
                    const std::function<void()>& body);

}  // namespace weft
