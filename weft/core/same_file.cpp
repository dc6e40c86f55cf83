#include "weft/core/same_file.h"

#include <sys/stat.h>

#include <map>

#include "weft/core/text.h"

namespace weft {

namespace fs = std::filesystem;

FileIdentity FileIdentity::of(const fs::path& path) {
  std::error_code failure;
  fs::path at = fs::weakly_canonical(path, failure);
  if (failure) at = fs::absolute(path, failure).lexically_normal();
  FileIdentity identity;
  struct stat status {};
  while (::stat(at.c_str(), &status) != 0) {
    identity.way =
        identity.way.empty() ? at.filename().string() : at.filename().string() + "/" + identity.way;
    if (!at.has_relative_path()) return identity;  // not even the root can be looked at
    at = at.parent_path();
  }
  identity.device = static_cast<uint64_t>(status.st_dev);
  identity.inode = static_cast<uint64_t>(status.st_ino);
  return identity;
}

void refuse_overwriting(const std::string& by, const std::vector<fs::path>& written,
                        const std::vector<KeptFiles>& kept) {
  std::map<FileIdentity, const KeptFiles*> owners;
  for (const KeptFiles& files : kept) {
    for (const fs::path& path : files.paths) owners.emplace(FileIdentity::of(path), &files);
  }
  for (const fs::path& path : written) {
    const auto found = owners.find(FileIdentity::of(path));
    if (found == owners.end()) continue;
    const KeptFiles& files = *found->second;
    throw OverwriteError(
        fmt::format("{} {} is also a file of {}", by, printable(path.string(), 4096), files.what),
        files.replaceable);
  }
}

}  // namespace weft
