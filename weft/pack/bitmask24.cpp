#include "weft/pack/bitmask24.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/pack/group_check.h"

namespace weft {
namespace {

constexpr std::string_view kEnding = ".weight";

size_t bitmask_row_bytes(int64_t cols) { return static_cast<size_t>(cols / 8 + (cols % 8 != 0)); }

size_t element_bytes_of(const TensorInfo& tensor) {
  return static_cast<size_t>(dtype_bits(tensor.dtype)) / 8;
}

}  // namespace

std::optional<std::string> bitmask24_prefix(const std::string& name) {
  if (!name.ends_with(kEnding) || name.size() == kEnding.size()) return std::nullopt;
  return name.substr(0, name.size() - kEnding.size());
}

std::optional<PackObstacle> bitmask24_obstacle(const TensorInfo& tensor) {
  if (!bitmask24_prefix(tensor.name)) return PackObstacle::kName;
  if (tensor.shape.size() != 2) return PackObstacle::kDimensions;
  if (tensor.shape[1] % 4 != 0) return PackObstacle::kColumns;
  if (!has_zero(tensor.dtype)) return PackObstacle::kNoZero;
  return std::nullopt;
}

std::vector<TensorInfo> bitmask24_tensors(const TensorInfo& tensor) {
  const std::string prefix = bitmask24_prefix(tensor.name).value_or(tensor.name) + ".";
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  return {{prefix + "shape", Dtype::kI64, {2, 1}, 0, 0},
          {prefix + "compressed", tensor.dtype, {rows, cols / 2}, 0, 0},
          {prefix + "bitmask",
           Dtype::kU8,
           {rows, static_cast<int64_t>(bitmask_row_bytes(cols))},
           0,
           0}};
}

Bitmask24 to_bitmask24(const TensorInfo& tensor, std::span<const std::byte> bytes,
                       const Mask& mask) {
  const auto obstacle = bitmask24_obstacle(tensor);
  WEFT_CHECK(!obstacle, "{}", obstacle_text(*obstacle, tensor));
  const int64_t rows = tensor.shape[0], cols = tensor.shape[1];
  const size_t size = element_bytes_of(tensor);
  WEFT_CHECK(mask.rows() == rows && mask.cols() == cols &&
                 bytes.size() == static_cast<size_t>(rows * cols) * size,
             "{} bytes and a mask of {} x {} for a tensor of {} x {}", bytes.size(), mask.rows(),
             mask.cols(), rows, cols);
  const Pattern two_of_four(2, 4);
  require_groups(mask, two_of_four, cols);
  WEFT_CHECK(every_group_is_full(mask, two_of_four, cols),
             "sparse-24-bitmask keeps two of every four");

  Bitmask24 result;
  result.shape.resize(2 * sizeof(int64_t));
  std::memcpy(result.shape.data(), tensor.shape.data(), result.shape.size());
  result.compressed.resize(bytes.size() / 2);
  const size_t row_bytes = bitmask_row_bytes(cols);
  result.bitmask.resize(static_cast<size_t>(rows) * row_bytes);
  if (cols == 0) return result;
  parallel_for(rows, [&](int64_t r) {
    const std::byte* from = bytes.data() + static_cast<size_t>(r * cols) * size;
    std::byte* to = result.compressed.data() + static_cast<size_t>(r * (cols / 2)) * size;
    std::byte* masked = result.bitmask.data() + static_cast<size_t>(r) * row_bytes;
    for (int64_t c = 0; c < cols; c += 64) {
      const int width = static_cast<int>(std::min<int64_t>(64, cols - c));
      const uint64_t kept = mask.bits(r, c, width);
      std::memcpy(masked + c / 8, &kept, bitmask_row_bytes(width));
      for (uint64_t bits = kept; bits != 0; bits &= bits - 1, to += size) {
        std::memcpy(to, from + static_cast<size_t>(c + std::countr_zero(bits)) * size, size);
      }
    }
  });
  return result;
}

std::vector<std::byte> from_bitmask24(int64_t rows, int64_t cols, size_t element_bytes,
                                      std::span<const std::byte> compressed,
                                      std::span<const std::byte> bitmask) {
  const size_t row_bytes = bitmask_row_bytes(cols);
  Mask mask(rows, cols);  // throws if the sizes overflow
  WEFT_CHECK(cols % 4 == 0, "{} columns are not a multiple of 4", cols);
  WEFT_CHECK(compressed.size() == static_cast<size_t>(rows * (cols / 2)) * element_bytes &&
                 bitmask.size() == static_cast<size_t>(rows) * row_bytes,
             "{} bytes of values and {} of bitmask do not belong to {} x {}", compressed.size(),
             bitmask.size(), rows, cols);
  std::vector<std::byte> bytes(2 * compressed.size());
  if (cols == 0) return bytes;
  parallel_for(rows, [&](int64_t r) {
    const std::byte* masked = bitmask.data() + static_cast<size_t>(r) * row_bytes;
    for (int64_t c = 0; c < cols; c += 64) {
      const int width = static_cast<int>(std::min<int64_t>(64, cols - c));
      uint64_t kept = 0;
      std::memcpy(&kept, masked + c / 8, bitmask_row_bytes(width));
      WEFT_CHECK(width == 64 || kept >> width == 0,
                 "bitmask of row {}: a bit is set past column {}", r, cols - 1);
      mask.put_bits(r, c, width, kept);
    }
  });
  const Pattern two_of_four(2, 4);
  require_groups(mask, two_of_four, cols);
  WEFT_CHECK(every_group_is_full(mask, two_of_four, cols),
             "bitmask: some group of four keeps fewer than two");
  parallel_for(rows, [&](int64_t r) {
    const std::byte* from = compressed.data() + static_cast<size_t>(r * (cols / 2)) * element_bytes;
    std::byte* to = bytes.data() + static_cast<size_t>(r * cols) * element_bytes;
    for (int64_t c = 0; c < cols; c += 64) {
      const int width = static_cast<int>(std::min<int64_t>(64, cols - c));
      for (uint64_t bits = mask.bits(r, c, width); bits != 0; bits &= bits - 1) {
        std::memcpy(to + static_cast<size_t>(c + std::countr_zero(bits)) * element_bytes, from,
                    element_bytes);
        from += element_bytes;
      }
    }
  });
  return bytes;
}

}  // namespace weft
