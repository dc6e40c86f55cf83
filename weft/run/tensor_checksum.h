// The checksum of a safetensors file of a run: "weft.crc32" in its metadata is the CRC-32 of
//
//   metadata, without the sum itself    key \0 value \0, by key
//   every tensor, in the order of file  name \0 type \0 shape \0
//   the bytes of every tensor           in the same order
//
// so that no bit of the file can change its meaning and go unnoticed. Internal to train.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/safetensors.h"

namespace weft {

using TensorBytes = std::vector<std::span<const std::byte>>;

// metadata with the sum of these tensors; bytes[i] are those of tensors[i].
Metadata with_checksum(const std::vector<TensorInfo>& tensors, Metadata metadata,
                       const TensorBytes& bytes);

// Reads every tensor into the memory that `place` returns for it, of tensor.bytes() bytes and kept
// until this returns. Throws Error that names the file if the sum is missing or is not that of the
// contents.
void read_checked(const SafetensorsReader& reader,
                  const std::function<std::span<std::byte>(const TensorInfo&)>& place);

}  // namespace weft
