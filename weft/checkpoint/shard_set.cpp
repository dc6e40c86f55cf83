#include "weft/checkpoint/shard_set.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>

#include "weft/core/atomic_file.h"
#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/regular_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMark = ".in-place-";
constexpr std::string_view kLinkEnding = "-link";  // of step 3, for a moment

std::string provisional_name(const std::string& name, int number) {
  return fmt::format(".{}{}{}", name, kMark, number);
}

// Held while shards are replaced: another process would take our new files for left-overs.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& folder)
      : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (fd_ >= 0 && ::flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
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

// The files that an index leads to; none if it cannot be read.
std::set<std::string> files_of_index(const fs::path& index) {
  std::set<std::string> names;
  try {
    const Json document = Json::parse_or_null(read_small_file(index));
    if (!document.contains("weight_map")) return names;
    for (const Json::Member& member : document["weight_map"].members()) {
      if (member.value.is_string()) names.insert(member.value.get<std::string>());
    }
  } catch (const Error&) {
  }
  return names;
}

// Provisional files of these shards that the index does not lead to.
void remove_left_overs(const fs::path& folder, const std::vector<NewShard>& shards,
                       const std::set<std::string>& in_use) {
  std::error_code failure;  // what stays does no harm
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    const bool ours = std::ranges::any_of(shards, [&](const NewShard& shard) {
      return name != shard.name && settled_name(name) == shard.name;
    });
    if (ours && !in_use.contains(name)) ::unlink(entry->path().c_str());
  }
}

// `to` becomes a name of the file `from`; where there are no hard links, of a copy.
void give_second_name(const fs::path& from, const fs::path& to) {
  fs::path link = from;
  link += kLinkEnding;
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

void replace_shards(const fs::path& index, const std::vector<NewShard>& shards,
                    const IndexText& index_text) {
  const fs::path folder = index.has_parent_path() ? index.parent_path() : fs::path(".");
  const FolderLock lock(folder);
  const std::set<std::string> before = files_of_index(index);
  remove_left_overs(folder, shards, before);
  int number = 1;
  const auto taken = [&](const NewShard& shard) {
    return before.contains(provisional_name(shard.name, number));
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
  write_file_atomically(index, index_text(new_names));
  for (size_t i = 0; i < shards.size(); ++i) {
    give_second_name(folder / new_names[i], folder / names[i]);
  }
  lock.sync();
  write_file_atomically(index, index_text(names));
  remove_left_overs(folder, shards, {});
}

}  // namespace

std::string settled_name(const std::string& name) {
  if (!name.starts_with('.')) return name;
  std::string_view text = name;
  if (text.ends_with(kLinkEnding)) text.remove_suffix(kLinkEnding.size());
  const size_t mark = text.rfind(kMark);
  if (mark == std::string_view::npos || mark < 2) return name;
  const std::string_view number = text.substr(mark + kMark.size());
  const bool digits =
      !number.empty() && std::ranges::all_of(number, [](char c) { return c >= '0' && c <= '9'; });
  return digits ? std::string(text.substr(1, mark - 1)) : name;
}

void commit_shards(const fs::path& index, const std::vector<NewShard>& shards,
                   const IndexText& index_text) {
  std::error_code failure;
  if (fs::exists(fs::symlink_status(index, failure))) {
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
