#include "weft/prune/tensor_values.h"

#include <cmath>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/core/weight_shape.h"
#include "weft/mask/solver.h"
#include "weft/prune/elements.h"

namespace weft {

const ShardedTensor* find_tensor(const Checkpoint& checkpoint, const std::string& name) {
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    if (tensor.info.name == name) return &tensor;
  }
  return nullptr;
}

std::vector<double> read_values(const Checkpoint& checkpoint, const ShardedTensor& tensor) {
  return read_finite_elements(checkpoint, tensor, 0, tensor.info.elements());
}

std::vector<double> read_values(const Checkpoint& checkpoint, const StoredWeight& weight) {
  return read_finite_outs(checkpoint, weight, 0, weight.dims().front());
}

void write_values(CheckpointWriter& writer, const ShardedTensor& tensor,
                  const std::vector<double>& values) {
  std::vector<std::byte> bytes(tensor.info.bytes());
  round_weights(values, tensor.info.dtype, bytes);
  with_weights(tensor.info.dtype, bytes, [&](auto rounded) {
    for (const auto value : rounded) {
      WEFT_CHECK(std::isfinite(value), "tensor '{}': a new value is too large for {}",
                 printable(tensor.info.name), dtype_name(tensor.info.dtype));
    }
  });
  writer.write(tensor, 0, bytes);
}

void naming_weights(const Checkpoint& checkpoint, const StoredWeight& weight, int64_t first_row,
                    const std::function<void()>& body) {
  try {
    body();
  } catch (const UnusableWeightError& error) {
    const std::vector<int64_t> index =
        weight.index_of(first_row + error.weight().row, error.weight().col);
    throw Error(fmt::format("{}: weight {} is {}: masks need finite weights{}",
                            place_of(checkpoint, weight.tensor), shape_text(index),
                            error.weight().value,
                            weight.tensor.info.dtype == Dtype::kF64 ? " of at most 2^900" : ""));
  }
}

}  // namespace weft
