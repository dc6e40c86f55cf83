// Elements of tensors in double, checked when read; and their positions in words.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/stored_weight.h"

namespace weft {

// Elements of a weight from its bytes, `first` elements of [outs, ins] after its first, in double.
// Throws Error that names file, tensor and index of one that is not finite.
std::vector<double> finite_elements(const Checkpoint& checkpoint, const StoredWeight& weight,
                                    int64_t first, std::span<const std::byte> bytes);

// The same of some outs, which are read: [outs, cols].
std::vector<double> read_finite_outs(const Checkpoint& checkpoint, const StoredWeight& weight,
                                     int64_t first_out, int64_t outs);

// The same of `count` elements of any tensor from `first`, which are read.
std::vector<double> read_finite_elements(const Checkpoint& checkpoint, const ShardedTensor& tensor,
                                         int64_t first, int64_t count);

// "model.safetensors: tensor 'fc.weight'", for messages.
std::string place_of(const Checkpoint& checkpoint, const ShardedTensor& tensor);

// The index of the element that is `element` after the first, row by row: "[2, 0, 1]".
std::string index_text(const std::vector<int64_t>& shape, int64_t element);
// The index in the file of an element of [outs, ins].
std::string index_text(const StoredWeight& weight, int64_t element);

// Calls body(first, count) for pieces of a long vector, one per item of parallel_for.
void for_each_piece(int64_t elements, const std::function<void(int64_t, int64_t)>& body);

}  // namespace weft
