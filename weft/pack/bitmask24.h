// sparse-24-bitmask, the layout of compressed-tensors for 2:4 weights, for import and export.
//
//   <name>.shape       I64 [2, 1]               rows, cols ([2] is accepted too)
//   <name>.compressed  as the weights [rows, cols / 2]   what is kept, row by row
//   <name>.bitmask     U8 [rows, ceil(cols / 8)]         bit c % 8 of byte c / 8: column c is kept
//
// where <name>.weight was the tensor. Every group of four keeps exactly two, so every row has
// cols / 2 values; a group with fewer non-zeros keeps zeros too. Elements are moved as bytes: any
// type of whole bytes passes bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/header.h"
#include "weft/core/mask.h"
#include "weft/pack/obstacle.h"

namespace weft {

inline constexpr std::string_view kBitmask24Parts[] = {"shape", "compressed", "bitmask"};

// "fc1" for "fc1.weight"; nullopt if the name has no such ending, and so no place in the format.
std::optional<std::string> bitmask24_prefix(const std::string& name);

// Why a tensor cannot be stored so, or nothing.
std::optional<PackObstacle> bitmask24_obstacle(const TensorInfo& tensor);

// shape, compressed and bitmask of a tensor without an obstacle.
std::vector<TensorInfo> bitmask24_tensors(const TensorInfo& tensor);

struct Bitmask24 {
  std::vector<std::byte> shape, compressed, bitmask;
};
// bytes: the elements of the tensor; mask: two of every four.
Bitmask24 to_bitmask24(const TensorInfo& tensor, std::span<const std::byte> bytes,
                       const Mask& mask);

// The elements of a [rows, cols] tensor of element_bytes each, zero where the bitmask says so.
// Throws Error unless every group of four keeps two, and no bit is set past the last column.
std::vector<std::byte> from_bitmask24(int64_t rows, int64_t cols, size_t element_bytes,
                                      std::span<const std::byte> compressed,
                                      std::span<const std::byte> bitmask);

}  // namespace weft
