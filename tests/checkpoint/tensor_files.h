// Tensors in files to test with: made by hand, independent of the writer under test, and read whole.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/scratch_folder.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/dtype.h"
#include "weft/checkpoint/header.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/core/json.h"
#include "weft/core/rng.h"

namespace weft::test {

using Bytes = std::vector<std::byte>;

// A safetensors file by hand, independent of the writer under test.
inline std::string safetensors(const std::string& json, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(json.size() >> (8 * i));
  return file + json + data;
}

// Bytes that differ from place to place and from tensor to tensor.
inline Bytes random_bytes(size_t count, uint64_t stream) {
  Bytes bytes(count);
  const Rng rng(7, stream);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(rng.bits(i));
  return bytes;
}

inline std::string text_of(const Bytes& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

inline Bytes read_all(const SafetensorsReader& file, const TensorInfo& tensor) {
  Bytes bytes(tensor.bytes());
  file.read(tensor, 0, bytes);
  return bytes;
}

inline Bytes read_all(const Checkpoint& checkpoint, const ShardedTensor& tensor) {
  Bytes bytes(tensor.info.bytes());
  checkpoint.read(tensor, 0, bytes);
  return bytes;
}

inline std::map<std::string, Bytes> read_all(const Checkpoint& checkpoint) {
  std::map<std::string, Bytes> tensors;
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    tensors[tensor.info.name] = read_all(checkpoint, tensor);
  }
  return tensors;
}

inline const TensorInfo& find(const Header& header, std::string_view name) {
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + std::string(name));
}

inline const ShardedTensor& find(const Checkpoint& checkpoint, std::string_view name) {
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    if (tensor.info.name == name) return tensor;
  }
  throw std::runtime_error("no tensor " + std::string(name));
}

inline TensorInfo tensor(std::string name, Dtype dtype, std::vector<int64_t> shape) {
  TensorInfo info;
  info.name = std::move(name);
  info.dtype = dtype;
  info.shape = std::move(shape);
  return info;
}

inline std::vector<Dtype> all_dtypes() {
  std::vector<Dtype> all;
  for (int i = 0; i <= static_cast<int>(Dtype::kC64); ++i) all.push_back(static_cast<Dtype>(i));
  return all;
}

// A file with the tensor w, not at the beginning of its data.
inline Checkpoint one_tensor(const std::filesystem::path& path, Dtype dtype,
                             const std::vector<int64_t>& shape) {
  SafetensorsWriter writer(path, {tensor("before", Dtype::kU8, {3}), tensor("w", dtype, shape)},
                           {});
  writer.write("before", 0, Bytes(3));
  writer.write("w", 0, random_bytes(tensor_bytes(dtype, shape), 5));
  writer.commit();
  return Checkpoint::open(path);
}

struct Model {
  std::map<std::string, Bytes> tensors;
  std::map<std::string, std::string> shard_of;
  Json metadata;
};

inline const char* const kIndexName = "model.safetensors.index.json";

// Three shards and an index, by hand.
inline Model write_sharded(const std::filesystem::path& folder) {
  Model model;
  std::filesystem::create_directories(folder);
  for (int shard = 0; shard < 3; ++shard) {
    const std::string file = fmt::format("model-0000{}-of-00003.safetensors", shard + 1);
    std::string json = fmt::format(R"({{"__metadata__":{{"format":"pt","shard":"{}"}})", shard);
    std::string data;
    for (int i = 0; i <= shard; ++i) {
      const std::string name = fmt::format("layers.{}.{}.weight", i, shard);
      const Bytes bytes = random_bytes(8 * 4 * 4, static_cast<uint64_t>(10 * shard + i));
      json += fmt::format(R"(,"{}":{{"dtype":"F32","shape":[8,4],"data_offsets":[{},{}]}})", name,
                          data.size(), data.size() + bytes.size());
      data += text_of(bytes);
      model.tensors[name] = bytes;
      model.shard_of[name] = file;
    }
    put(folder / file, safetensors(json + "}", data));
  }
  model.metadata = {{"total_size", 6 * 128},
                    {"note", {{"z", nullptr}, {"a", {1.5, true, "\u2713"}}}}};
  put(folder / kIndexName,
      Json{{"metadata", model.metadata}, {"weight_map", model.shard_of}}.dump(2));
  return model;
}

// Copies every tensor and leaves the commit to the caller.
inline void copy_all(CheckpointWriter& writer, const Checkpoint& from) {
  for (const ShardedTensor& each : from.tensors()) writer.copy(from, each);
}

}  // namespace weft::test
