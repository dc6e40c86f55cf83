// TextSet: text as bytes, a token each, for models of the next byte.
//
// A window of a context length C is C + 1 bytes: the first C are what the model sees, the last C
// what it should say. Window i begins at byte i · C, so every byte but the first is predicted in
// one window (those after the last whole window in none).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace weft {

struct TextSet {
  static constexpr int64_t kTokens = 256;

  std::vector<uint8_t> bytes;

  int64_t windows(int64_t context) const;
  std::span<const uint8_t> window(int64_t index, int64_t context) const;
};

struct TextData {
  TextSet train;
  TextSet test;  // the last tenth
};

// A file, or the regular files of a folder and its folders, in the order of their paths' bytes.
// Links to folders are not followed. At most kMostTextBytes, at least 10.
constexpr uint64_t kMostTextBytes = uint64_t{1} << 30;
TextData read_text(const std::filesystem::path& path);

// Where the C++ headers of this machine are: the highest version below `root`.
std::filesystem::path default_text_path(const std::filesystem::path& root = "/usr/include/c++");

}  // namespace weft
