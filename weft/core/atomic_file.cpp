#include "weft/core/atomic_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "weft/core/error.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// The table of unfinished paths. A signal handler must not allocate, free or lock, so the storage
// is fixed (4 MB that cost nothing until they are written) and stays when a path is released.
//
//   free --claim--> claimed (its owner writes the path) --> ready --release--> free
//
// A handler reads ready slots only. Their text changes when another thread releases and claims them
// again, and no claim writes while a handler runs: if the handler saw the slot ready before it was
// released, it had raised `removals` before that, and so the claim sees it.
enum class State : int { kFree, kClaimed, kReady };

constexpr size_t kSlots = 1024;
std::array<std::atomic<State>, kSlots> states;
std::array<std::array<char, PATH_MAX>, kSlots> paths;
std::atomic<int> removals;  // handlers that run now

static_assert(std::atomic<State>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

int claim_slot(const std::string& path) noexcept {
  if (path.empty() || path.size() >= PATH_MAX) return -1;
  for (size_t slot = 0; slot < kSlots; ++slot) {
    State expected = State::kFree;
    if (!states[slot].compare_exchange_strong(expected, State::kClaimed)) continue;
    if (removals.load() != 0) {
      states[slot].store(State::kFree);
      return -1;
    }
    std::memcpy(paths[slot].data(), path.c_str(), path.size() + 1);
    states[slot].store(State::kReady);
    return static_cast<int>(slot);
  }
  return -1;
}

void release_slot(int slot) noexcept {
  if (slot >= 0) states[static_cast<size_t>(slot)].store(State::kFree);
}

template <typename Remove>
void for_each_ready(Remove remove) noexcept {
  for (size_t slot = 0; slot < kSlots; ++slot) {
    if (states[slot].load() == State::kReady) remove(paths[slot].data());
  }
}

std::string reason() { return std::strerror(errno); }

// A symbolic link is followed, so that the file behind it is replaced and not the link.
fs::path resolve(const fs::path& target) {
  std::error_code failure;
  const fs::path resolved = fs::weakly_canonical(target, failure);
  return failure ? target : resolved;
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // a folder that may be written but not read cannot be synced
  ::fsync(fd);
  ::close(fd);
}

}  // namespace

UnfinishedPath::UnfinishedPath(const fs::path& path) noexcept : slot_(claim_slot(path.native())) {}
UnfinishedPath::~UnfinishedPath() { release_slot(slot_); }
UnfinishedPath::UnfinishedPath(UnfinishedPath&& other) noexcept
    : slot_(std::exchange(other.slot_, -1)) {}
UnfinishedPath& UnfinishedPath::operator=(UnfinishedPath&& other) noexcept {
  release_slot(std::exchange(slot_, std::exchange(other.slot_, -1)));
  return *this;
}

AtomicFile::AtomicFile(const fs::path& target) : target_(resolve(target)) {
  struct stat status {};
  // lstat: what is still a link after resolve() leads nowhere, and would itself be replaced.
  if (::lstat(target_.c_str(), &status) == 0) {
    WEFT_CHECK(S_ISREG(status.st_mode), "{}: cannot write: exists and is not a regular file",
               target.string());
  }
  WEFT_CHECK(target_.has_filename(), "{}: cannot write: not a file name", target.string());

  static std::atomic<int> counter{0};
  while (fd_ < 0) {
    temporary_ = target_.parent_path() / fmt::format(".{}.weft-{}-{}",
                                                     target_.filename().string().substr(0, 200),
                                                     ::getpid(), counter.fetch_add(1));
    unfinished_ = UnfinishedPath(temporary_);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) break;
    const int failure = errno;
    unfinished_ = {};
    // EEXIST: left by a killed process with our id, as every process of a container has; try on.
    WEFT_CHECK(failure == EEXIST, "{}: cannot write: {}", target.string(), std::strerror(failure));
  }
  // Replacing a file keeps who may read it.
  if (status.st_mode != 0) ::fchmod(fd_, status.st_mode & 07777);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      unfinished_(std::move(other.unfinished_)) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(temporary_.c_str());
  unfinished_ = {};
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    WEFT_CHECK(written > 0, "{}: cannot write: {}", target_.string(), reason());
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
}

void AtomicFile::sync() {
  WEFT_CHECK(::fsync(fd_) == 0, "{}: cannot write: {}", target_.string(), reason());
}

void AtomicFile::commit() {
  sync();
  WEFT_CHECK(::rename(temporary_.c_str(), target_.c_str()) == 0, "{}: cannot write: {}",
             target_.string(), reason());
  ::close(std::exchange(fd_, -1));
  unfinished_ = {};
  sync_folder(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
}

void write_file_atomically(const fs::path& target, std::string_view text) {
  AtomicFile file(target);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

void remove_unfinished_files() noexcept {
  const int before = errno;  // that of whatever the signal interrupted
  removals.fetch_add(1);
  for_each_ready([](const char* path) { ::unlink(path); });
  for_each_ready([](const char* path) { ::rmdir(path); });
  removals.fetch_sub(1);
  errno = before;
}

}  // namespace weft
