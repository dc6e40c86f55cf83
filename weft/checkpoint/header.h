// The header of a safetensors file: names, types, shapes and places of its tensors.
//
//   file   = length (u64, little-endian) | header (JSON, `length` bytes) | data
//   header = {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [begin, end]}}
//
// Offsets count from the first byte of the data. The tensors must tile the data: no hole, no
// overlap, nothing after the last one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "weft/checkpoint/dtype.h"

namespace weft {

struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes, from the first byte of the data
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
  int64_t elements() const;
};

using Metadata = std::map<std::string, std::string>;

struct Header {
  std::vector<TensorInfo> tensors;  // in the order of their data
  Metadata metadata;
};

// What the format's own library accepts; a longer header is refused before it is read.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Throws Error with a line that begins with `file` and names the tensor and the problem.
Header parse_header(std::string_view json, uint64_t data_bytes, const std::string& file);

// Length and JSON, padded so that the data begins at a multiple of 8. Sets the offsets of
// `tensors`, one after the other in their order.
std::string format_header(std::vector<TensorInfo>& tensors, const Metadata& metadata);

// Bytes that the tensor takes. Throws Error if that overflows or does not end on a whole byte.
uint64_t tensor_bytes(Dtype dtype, const std::vector<int64_t>& shape);

}  // namespace weft
