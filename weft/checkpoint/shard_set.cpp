#include "weft/checkpoint/shard_set.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <set>
#include <thread>

#include "weft/core/atomic_file.h"
#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/regular_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".in-place-";
constexpr std::string_view kLink = "link-";  // in the name of step 3, for a moment

std::string provisional_name(const std::string& name, int number) {
  return fmt::format("{}{}.{}", kMark, number, name);
}

std::string link_name(const std::string& name, int number) {
  return fmt::format("{}{}{}.{}", kMark, kLink, number, name);
}

// Held while shards are replaced: another process would take our new files for left-overs. It holds
// the lock for as long as a few renames take, so waiting longer than this is of no use.
constexpr std::chrono::seconds kLockPatience{5};

class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    const auto until = std::chrono::steady_clock::now() + kLockPatience;
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (std::chrono::steady_clock::now() > until) {
        ::close(fd_);
        throw Error(
            fmt::format("{}: another process holds a lock on this folder", folder.string()));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  void sync() const {
    if (fd_ >= 0) ::fsync(fd_);
  }

 private:
  int fd_;  // -1: a folder that may be written but not read
};

// New shards that no index leads to yet: removed again, unless kept.
class Provisional {
 public:
  explicit Provisional(fs::path path) : path_(std::move(path)), unfinished_(path_) {}
  ~Provisional() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  Provisional(Provisional&& other) noexcept
      : path_(std::exchange(other.path_, {})), unfinished_(std::move(other.unfinished_)) {}
  Provisional(const Provisional&) = delete;
  Provisional& operator=(Provisional&&) = delete;

  void keep() {
    unfinished_ = {};  // before anything: a signal must not remove what an index leads to
    path_.clear();
  }

 private:
  fs::path path_;
  UnfinishedPath unfinished_;
};

// The files that an index leads to.
std::set<std::string> files_of_index(const fs::path& index) {
  std::set<std::string> names;
  const Json document = Json::parse_or_null(read_small_file(index));
  WEFT_CHECK(document.contains("weight_map"), "{}: no weight_map", index.string());
  for (const Json::Member& member : document["weight_map"].members()) {
    if (member.value.is_string()) names.insert(member.value.get<std::string>());
  }
  return names;
}

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code failure;  // what is not seen stays, and does no harm
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    files.push_back(entry->path());
  }
  return files;
}

// Removes provisional files of these shards that no index of the folder leads to. If one of the
// indices cannot be read, nothing is removed.
void remove_left_overs(const fs::path& folder, const std::vector<NewShard>& shards) {
  const std::vector<fs::path> files = files_in(folder);
  std::set<std::string> in_use;
  try {
    for (const fs::path& file : files) {
      if (file.string().ends_with(kIndexEnding)) in_use.merge(files_of_index(file));
    }
  } catch (const Error&) {
    return;
  }
  for (const fs::path& file : files) {
    const std::string name = file.filename().string();
    const bool ours = std::ranges::any_of(shards, [&](const NewShard& shard) {
      return name != shard.name && settled_name(name) == shard.name;
    });
    if (ours && !in_use.contains(name)) ::unlink(file.c_str());
  }
}

// `to` becomes a name of the file `from`; where there are no hard links, of a copy. It is `link`
// first, so that one rename replaces what `to` was.
void give_second_name(const fs::path& from, const fs::path& link, const fs::path& to) {
  ::unlink(link.c_str());
  const UnfinishedPath unfinished(link);
  if (::link(from.c_str(), link.c_str()) != 0) {
    std::error_code failure;
    fs::copy_file(from, link, failure);
    WEFT_CHECK(!failure, "{}: cannot write: {}", to.string(), failure.message());
    const int fd = ::open(link.c_str(), O_RDONLY | O_CLOEXEC);
    const bool synced = fd >= 0 && ::fsync(fd) == 0;
    if (fd >= 0) ::close(fd);
    WEFT_CHECK(synced, "{}: cannot write: {}", to.string(), std::strerror(errno));
  }
  WEFT_CHECK(::rename(link.c_str(), to.c_str()) == 0, "{}: cannot write: {}", to.string(),
             std::strerror(errno));
}

bool is_there(const fs::path& path) {
  std::error_code failure;
  return fs::exists(fs::symlink_status(path, failure));
}

fs::path folder_of(const fs::path& index) {
  return index.has_parent_path() ? index.parent_path() : fs::path(".");
}

void replace_shards(const fs::path& index, const std::vector<NewShard>& shards,
                    const IndexText& index_text) {
  const fs::path folder = folder_of(index);
  const FolderLock lock(folder);
  remove_left_overs(folder, shards);
  // What is left of these names may be in use: a process was killed before step 4.
  int number = 1;
  const auto taken = [&](const NewShard& shard) {
    return is_there(folder / provisional_name(shard.name, number));
  };
  while (std::ranges::any_of(shards, taken)) ++number;

  std::vector<std::string> names, new_names;
  std::vector<Provisional> provisional;
  for (const NewShard& shard : shards) {
    names.push_back(shard.name);
    new_names.push_back(provisional_name(shard.name, number));
    provisional.emplace_back(folder / new_names.back());
    shard.file->commit_as(folder / new_names.back());
  }
  for (Provisional& one : provisional) one.keep();
  try {
    write_file_atomically(index, index_text(new_names));
  } catch (...) {
    remove_left_overs(folder, shards);  // which looks where the index leads now
    throw;
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    give_second_name(folder / new_names[i], folder / link_name(names[i], number),
                     folder / names[i]);
  }
  lock.sync();
  write_file_atomically(index, index_text(names));
  remove_left_overs(folder, shards);
}

}  // namespace

std::string settled_name(const std::string& name) {
  std::string_view rest = name;
  if (!rest.starts_with(kMark)) return name;
  rest.remove_prefix(kMark.size());
  if (rest.starts_with(kLink)) rest.remove_prefix(kLink.size());
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  rest.remove_prefix(digits);
  return digits > 0 && rest.size() > 1 && rest.front() == '.' ? std::string(rest.substr(1)) : name;
}

void commit_shards(const fs::path& index, const std::vector<NewShard>& shards,
                   const IndexText& index_text) {
  const fs::path folder = folder_of(index);
  if (is_there(index) || std::ranges::any_of(shards, [&](const NewShard& shard) {
        return is_there(folder / shard.name);
      })) {
    replace_shards(index, shards, index_text);
    return;
  }
  std::vector<std::string> names;
  for (const NewShard& shard : shards) {
    shard.file->commit();
    names.push_back(shard.name);
  }
  write_file_atomically(index, index_text(names));
}

}  // namespace weft
