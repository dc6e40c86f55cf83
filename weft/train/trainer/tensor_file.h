// Tensors of torch in safetensors files, with a checksum.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/checkpoint/header.h"

namespace weft {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

// Atomically. The checksum of all tensors goes into the metadata, as "weft.crc32".
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   Metadata metadata);

struct TensorFile {
  Metadata metadata;
  std::map<std::string, torch::Tensor> tensors;
};
// Throws Error that names the file if it is damaged.
TensorFile read_tensors(const std::filesystem::path& path);

}  // namespace weft
