// Which paths lead to one file, however they are spelled: by device and inode, through symbolic
// links, hard links, "./" and mounts.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "weft/core/error.h"

namespace weft {

// Of a file that does not exist yet: the nearest folder above it that does, and the way from there.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  std::string way;  // empty for what exists

  static FileIdentity of(const std::filesystem::path& path);
  auto operator<=>(const FileIdentity&) const = default;
};

// Files that must stay as they are, with the word that a user knows them by.
struct KeptFiles {
  std::string what;  // "IN"
  std::vector<std::filesystem::path> paths;
  bool replaceable = false;  // they may be replaced on request
};

// replaceable(): of the files that would have been overwritten.
class OverwriteError : public Error {
 public:
  OverwriteError(const std::string& message, bool replaceable)
      : Error(message), replaceable_(replaceable) {}
  bool replaceable() const { return replaceable_; }

 private:
  bool replaceable_;
};

// Throws OverwriteError that names the first of the files to be written which is one of those to be
// kept. `by`: what is written, as "OUT". Called before anything is written.
void refuse_overwriting(const std::string& by, const std::vector<std::filesystem::path>& written,
                        const std::vector<KeptFiles>& kept);

}  // namespace weft
