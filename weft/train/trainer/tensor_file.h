// Tensors of torch in safetensors files.
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

// Atomically. `Checksum::kYes`: of the metadata, the names, types, shapes and bytes of all tensors,
// as "weft.crc32" in the metadata; read_tensors must then ask for it.
enum class Checksum : uint8_t { kNo, kYes };
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   Metadata metadata, Checksum checksum = Checksum::kNo);

struct TensorFile {
  Metadata metadata;
  std::map<std::string, torch::Tensor> tensors;
};
// Throws Error that names the file if it is damaged.
TensorFile read_tensors(const std::filesystem::path& path, Checksum checksum = Checksum::kNo);

}  // namespace weft
