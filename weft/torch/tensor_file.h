// Tensors of torch in safetensors files.
#pragma once

#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "weft/checkpoint/checkpoint.h"

namespace weft {

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

// Atomically. `Checksum::kYes`: with a checksum of all that is in the file (run/tensor_checksum.h),
// which read_tensors must then ask for.
enum class Checksum : uint8_t { kNo, kYes };
void write_tensors(const std::filesystem::path& path, const NamedTensors& tensors,
                   Metadata metadata, Checksum checked = Checksum::kNo);

struct TensorFile {
  Metadata metadata;
  std::map<std::string, torch::Tensor> tensors;
  std::string name;  // of the file, for messages

  // Throw Error that names file and tensor if it is missing; if it is not of the type and shape of
  // `model`.
  const torch::Tensor& at(const std::string& tensor) const;
  const torch::Tensor& like(const torch::Tensor& model, const std::string& tensor) const;
};
// One tensor. Throws Error that names file and tensor if torch does not have its type.
torch::Tensor read_tensor(const Checkpoint& checkpoint, const ShardedTensor& tensor);

// Throws Error that names the file if it is damaged.
TensorFile read_tensors(const std::filesystem::path& path, Checksum checked = Checksum::kNo);

}  // namespace weft
