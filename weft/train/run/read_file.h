// A small text file, whole. Internal to train.
#pragma once

#include <filesystem>
#include <string>

namespace weft {

// Throws Error that names the file if it cannot be read, is no regular file or is larger than 64
// MB.
std::string read_small_file(const std::filesystem::path& path);

}  // namespace weft
