#include "weft/prune/elements.h"

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"

namespace weft {

std::vector<double> finite_elements(const Checkpoint& checkpoint, const StoredWeight& weight,
                                    int64_t first_element, std::span<const std::byte> bytes) {
  const Dtype dtype = weight.tensor.info.dtype;
  const auto size = static_cast<uint64_t>(dtype_bits(dtype) / 8);
  std::vector<double> elements(bytes.size() / size);
  for_each_piece(static_cast<int64_t>(elements.size()), [&](int64_t first, int64_t count) {
    const auto begin = static_cast<uint64_t>(first);
    const auto piece = bytes.subspan(begin * size, static_cast<uint64_t>(count) * size);
    with_weights(dtype, piece, [&](auto weights) {
      for (size_t i = 0; i < weights.size(); ++i) {
        WEFT_CHECK(std::isfinite(weights[i]), "{}: element {} is {}, and must be finite",
                   place_of(checkpoint, weight.tensor),
                   index_text(weight, first_element + static_cast<int64_t>(begin + i)), weights[i]);
        elements[begin + i] = static_cast<double>(weights[i]);
      }
    });
  });
  return elements;
}

std::vector<double> read_finite_elements(const Checkpoint& checkpoint, const ShardedTensor& tensor,
                                         int64_t first, int64_t count) {
  const auto size = static_cast<uint64_t>(dtype_bits(tensor.info.dtype) / 8);
  std::vector<std::byte> bytes(static_cast<uint64_t>(count) * size);
  const uint64_t offset = static_cast<uint64_t>(first) * size;
  checkpoint.read(tensor, offset, bytes);
  return finite_elements(checkpoint, StoredWeight{tensor}, first, bytes);
}

std::vector<double> read_finite_outs(const Checkpoint& checkpoint, const StoredWeight& weight,
                                     int64_t first_out, int64_t outs) {
  const std::vector<int64_t> dims = weight.dims();
  WEFT_CHECK(!dims.empty(), "{}: a scalar has no outs", place_of(checkpoint, weight.tensor));
  if (weight.tensor.info.bytes() == 0) return {};
  const uint64_t out_bytes = weight.tensor.info.bytes() / static_cast<uint64_t>(dims.front());
  std::vector<std::byte> bytes(static_cast<uint64_t>(outs) * out_bytes);
  read_outs(checkpoint, weight, first_out, bytes);
  const int64_t cols = weight.tensor.info.elements() / dims.front();
  return finite_elements(checkpoint, weight, first_out * cols, bytes);
}

std::string place_of(const Checkpoint& checkpoint, const ShardedTensor& tensor) {
  return fmt::format("{}: tensor '{}'", checkpoint.file_of(tensor), printable(tensor.info.name));
}

std::string index_text(const std::vector<int64_t>& shape, int64_t element) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  return shape_text(index);
}

std::string index_text(const StoredWeight& weight, int64_t element) {
  if (!weight.transposed) return index_text(weight.tensor.info.shape, element);
  const int64_t cols = weight.shape().cols();
  return shape_text(weight.index_of(element / cols, element % cols));
}

void for_each_piece(int64_t elements, const std::function<void(int64_t, int64_t)>& body) {
  constexpr int64_t kPieceElements = 1 << 16;
  parallel_for((elements + kPieceElements - 1) / kPieceElements, [&](int64_t item) {
    const int64_t first = item * kPieceElements;
    body(first, std::min(kPieceElements, elements - first));
  });
}

}  // namespace weft
