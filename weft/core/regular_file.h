// Regular files, opened for reading.
//
// Opening never blocks: a pipe without a writer, a device or a folder is an Error, not a hang.
// Every Error names the file in one line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace weft {

// A file descriptor, which the caller closes.
int open_regular_file(const std::filesystem::path& path);

// The whole text of a small file: a configuration, a record, a cache. Throws Error if the file has
// more than `most` bytes, before anything is read or allocated.
constexpr uint64_t kMostSmallFileBytes = uint64_t{64} << 20;
std::string read_small_file(const std::filesystem::path& path, uint64_t most = kMostSmallFileBytes);

}  // namespace weft
