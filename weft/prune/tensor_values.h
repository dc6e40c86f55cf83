// Tensors of a checkpoint by name, and their values.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/checkpoint/stored_weight.h"

namespace weft {

const ShardedTensor* find_tensor(const Checkpoint& checkpoint, const std::string& name);

// All values of a tensor that is_weight_dtype. Throws Error that names one that is not finite.
std::vector<double> read_values(const Checkpoint& checkpoint, const ShardedTensor& tensor);
std::vector<double> read_values(const Checkpoint& checkpoint, const StoredWeight& weight);
// The reverse, rounded to its type. Throws Error that names the tensor if a value is too large for
// that.
void write_values(CheckpointWriter& writer, const ShardedTensor& tensor,
                  const std::vector<double>& values);

// Calls find_mask, or whatever else may meet an unusable weight, and names tensor and index if it
// does. `first_row`: the out that the weights begin with.
void naming_weights(const Checkpoint& checkpoint, const StoredWeight& weight, int64_t first_row,
                    const std::function<void()>& body);

}  // namespace weft
