// Checkpoints to run the program on, and what came out of them.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "tests/program.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/core/rng.h"

namespace weft::test {

inline std::vector<float> gaussian(int64_t count, uint64_t stream = 0) {
  std::vector<float> values(static_cast<size_t>(count));
  const Rng rng(7, stream);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rng.normal(i));
  return values;
}

struct NamedTensor {
  std::string name;
  Dtype dtype;
  std::vector<int64_t> shape;
  std::vector<float> values;
};

template <typename To, typename Convert>
inline std::string bytes_as(const std::vector<float>& values, Convert convert) {
  std::string bytes;
  for (const float value : values) {
    const To element = convert(value);
    bytes.append(reinterpret_cast<const char*>(&element), sizeof element);
  }
  return bytes;
}

inline std::string encode(Dtype dtype, const std::vector<float>& values) {
  switch (dtype) {
    case Dtype::kF64: return bytes_as<double>(values, [](float v) { return double{v}; });
    case Dtype::kBf16:
      return bytes_as<uint16_t>(
          values, [](float v) { return static_cast<uint16_t>(std::bit_cast<uint32_t>(v) >> 16); });
    case Dtype::kF16:  // for values in its normal range; mantissa cut
      return bytes_as<uint16_t>(values, [](float v) {
        const auto bits = std::bit_cast<uint32_t>(v);
        const uint32_t magnitude =
            (bits & 0x7fffffff) < 0x38800000 ? 0 : ((bits & 0x7fffffff) - 0x38000000) >> 13;
        return static_cast<uint16_t>((bits >> 16 & 0x8000) | magnitude);
      });
    default: return bytes_as<float>(values, [](float v) { return v; });
  }
}

inline void write_file(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const Metadata& metadata = {}) {
  std::vector<TensorInfo> infos;
  for (const NamedTensor& tensor : tensors) {
    infos.push_back({tensor.name, tensor.dtype, tensor.shape, 0, 0});
  }
  SafetensorsWriter writer(path, infos, metadata);
  for (const NamedTensor& tensor : tensors) {
    const std::string bytes = encode(tensor.dtype, tensor.values);
    writer.write(tensor.name, 0, std::as_bytes(std::span(bytes)));
  }
  writer.commit();
}

inline std::string tensor_bytes_of(const std::string& path, const std::string& name) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    if (tensor.info.name != name) continue;
    std::string bytes(tensor.info.bytes(), '\0');
    checkpoint.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }
  ADD_FAILURE() << path << " has no tensor " << name;
  return "";
}

inline std::vector<float> floats_of(const std::string& path, const std::string& name) {
  const std::string bytes = tensor_bytes_of(path, name);
  std::vector<float> values(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// A model with one of everything that `mask` tells apart.
inline std::string write_model(const ScratchFolder& folder) {
  const std::string path = folder / "model.safetensors";
  write_file(path,
             {{"fc1.weight", Dtype::kF32, {24, 40}, gaussian(960, 1)},
              {"fc1.bias", Dtype::kF32, {24}, gaussian(24, 2)},
              {"conv.weight", Dtype::kF32, {16, 8, 3, 3}, gaussian(1152, 3)},
              {"half.weight", Dtype::kF16, {8, 16}, gaussian(128, 4)},
              {"brain.weight", Dtype::kBf16, {9, 17}, gaussian(153, 5)},
              {"double.weight", Dtype::kF64, {12, 12}, gaussian(144, 6)},
              {"embed_tokens.weight", Dtype::kF32, {16, 16}, gaussian(256, 7)},
              {"norm.weight", Dtype::kF32, {4, 4}, gaussian(16, 8)}},
             {{"author", "somebody"}});
  return path;
}

// What a failed command leaves: its exit code, one line that has these parts, and nothing else.
inline void expect_one_line(const Outcome& outcome, int code,
                            const std::vector<std::string>& parts) {
  EXPECT_EQ(outcome.code, code) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_TRUE(outcome.err.starts_with("weft: ")) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  for (const std::string& part : parts) {
    EXPECT_NE(outcome.err.find(part), std::string::npos) << part << " is not in: " << outcome.err;
  }
}

}  // namespace weft::test
