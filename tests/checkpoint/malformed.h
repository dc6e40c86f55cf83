// Malformed files by hand, and what must happen to them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/core/error.h"

namespace weft::test {

using Strings = std::vector<std::string>;

inline std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

inline std::string length_prefix(uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(length >> (8 * i));
  return bytes;
}

inline std::string safetensors(const std::string& json, size_t data_bytes) {
  return length_prefix(json.size()) + json + std::string(data_bytes, 'd');
}

// One tensor 'w' with these fields and `data_bytes` of data.
inline std::string with_fields(const std::string& fields, size_t data_bytes) {
  return safetensors("{\"w\":{" + fields + "}}", data_bytes);
}

inline std::string entry(const std::string& name, uint64_t begin, uint64_t end) {
  return fmt::format(R"("{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})", name,
                     end - begin, begin, end);
}

inline void read_tensors(const std::filesystem::path& path) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    std::vector<std::byte> bytes(tensor.info.bytes());
    checkpoint.read(tensor, 0, bytes);
  }
}

inline void read_all(const std::filesystem::path& path) {
  read_tensors(path);
  Checkpoint::open(path).sparsity();
}

inline void expect_one_line(const std::string& message) {
  EXPECT_TRUE(std::none_of(message.begin(), message.end(), [](unsigned char c) {
    return c < 0x20 || c == 0x7f;
  })) << message;
  EXPECT_LT(message.size(), 1000u) << message.substr(0, 2000);
}

inline void expect_refused(const std::filesystem::path& path, const Strings& words) {
  try {
    read_all(path);
    ADD_FAILURE() << "was accepted";
  } catch (const Error& error) {
    const std::string message = error.what();
    expect_one_line(message);
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << "no '" << word << "' in: " << message;
    }
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception than weft::Error: " << error.what();
  }
}

// A test of its own for each.
struct Malformed {
  std::string name;
  std::string bytes;
  Strings words;
};

inline std::string name_of(const ::testing::TestParamInfo<Malformed>& row) {
  return row.param.name;
}
inline void PrintTo(const Malformed& row, std::ostream* out) { *out << row.name; }

}  // namespace weft::test
