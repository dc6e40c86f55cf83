#include "weft/core/atomic_file.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
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

// A symbolic link is followed, so that its target is replaced and not the link.
fs::path resolve(const fs::path& target) {
  std::error_code failure;
  const fs::path resolved = fs::weakly_canonical(target, failure);
  return failure ? target : resolved;
}

fs::path folder_of(const fs::path& target) {
  return target.has_parent_path() ? target.parent_path() : fs::path(".");
}

// What the temporary names of a target begin with; the id of the process and a number follow. Cut,
// so that the longest file names have one, too.
std::string temporary_prefix(const fs::path& target) {
  return fmt::format(".{}.weft-", target.filename().string().substr(0, 200));
}

// "<digits>-<digits>"
bool is_owner(std::string_view text) {
  const size_t dash = text.find('-');
  const auto digits = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  return dash != std::string_view::npos && digits(text.substr(0, dash)) &&
         digits(text.substr(dash + 1));
}

// Whether a file of this name is temporary; of the target with this prefix, or of any if it is
// empty.
bool is_temporary(std::string_view name, std::string_view prefix) {
  if (!prefix.empty()) {
    return name.starts_with(prefix) && is_owner(name.substr(prefix.size()));
  }
  constexpr std::string_view kMark = ".weft-";
  const size_t mark = name.rfind(kMark);
  return name.starts_with('.') && mark != std::string_view::npos && mark > 0 &&
         is_owner(name.substr(mark + kMark.size()));
}

// Removes a temporary file unless its lock is held, or cannot be tested. A writer that
// has made the file and not yet locked it finds it locked or gone, and takes another name.
void remove_if_stale(const fs::path& path) noexcept {
  const int fd = ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  struct stat opened {
  }, named{};
  if (::fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode) && ::flock(fd, LOCK_EX | LOCK_NB) == 0 &&
      ::lstat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
      named.st_dev == opened.st_dev) {
    ::unlink(path.c_str());
  }
  ::close(fd);
}

void remove_stale(const fs::path& folder, std::string_view prefix) {
  std::error_code failure;
  for (fs::directory_iterator entry(folder, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    if (is_temporary(entry->path().filename().native(), prefix)) remove_if_stale(entry->path());
  }
}

// Locks a file that was just made; false if another process took it for stale in between. On a file
// system without locks it stays unlocked, and is never removed.
bool lock_new_file(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
  struct stat status {};
  return ::fstat(fd, &status) == 0 && status.st_nlink > 0;
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

NewFolder::NewFolder(const fs::path& path) {
  std::error_code failure;
  if (fs::create_directory(path, failure)) {
    path_ = path;
    unfinished_ = UnfinishedPath(path);
  }
  WEFT_CHECK(!failure && fs::is_directory(path, failure), "{}: cannot make the folder: {}",
             path.string(), failure ? failure.message() : "a file of that name exists");
}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove(path_, ignored);
}

NewFolder& NewFolder::operator=(NewFolder&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(unfinished_, other.unfinished_);
  return *this;
}

void NewFolder::keep() {
  path_.clear();
  unfinished_ = {};
}

AtomicFile::AtomicFile(const fs::path& target) : target_(resolve(target)) {
  struct stat status {};
  // lstat: what is still a link after resolve() leads nowhere, and would itself be replaced.
  if (::lstat(target_.c_str(), &status) == 0) {
    WEFT_CHECK(S_ISREG(status.st_mode), "{}: cannot write: exists and is not a regular file",
               target.string());
  }
  WEFT_CHECK(target_.has_filename(), "{}: cannot write: not a file name", target.string());

  const std::string prefix = temporary_prefix(target_);
  remove_stale(folder_of(target_), prefix);
  static std::atomic<int> counter{0};
  while (fd_ < 0) {
    temporary_ =
        target_.parent_path() / fmt::format("{}{}-{}", prefix, ::getpid(), counter.fetch_add(1));
    unfinished_ = UnfinishedPath(temporary_);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0 && lock_new_file(fd_)) break;
    const int failure = errno;
    if (fd_ >= 0) {
      ::close(std::exchange(fd_, -1));  // the process that took it for stale removes it
    } else {
      // EEXIST: of a living process with our id, as every process of a container has; try on.
      WEFT_CHECK(failure == EEXIST, "{}: cannot write: {}", target.string(),
                 std::strerror(failure));
    }
    unfinished_ = {};
  }
  // Replacing a file keeps its permissions.
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
  ::unlink(temporary_.c_str());  // while it is locked, and so ours
  ::close(std::exchange(fd_, -1));
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

void AtomicFile::commit() { commit_as(target_); }

void AtomicFile::commit_as(const fs::path& path) {
  sync();
  WEFT_CHECK(::rename(temporary_.c_str(), path.c_str()) == 0, "{}: cannot write: {}", path.string(),
             reason());
  ::close(std::exchange(fd_, -1));
  unfinished_ = {};
  sync_folder(folder_of(target_));
}

void write_file_atomically(const fs::path& target, std::string_view text) {
  AtomicFile file(target);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

void remove_stale_temporaries(const fs::path& folder) { remove_stale(folder, ""); }

void remove_unfinished_files() noexcept {
  const int before = errno;  // that of whatever the signal interrupted
  removals.fetch_add(1);
  for_each_ready([](const char* path) { ::unlink(path); });
  for (int depth = 0; depth < 2; ++depth) {  // a folder may be in a new folder itself
    for_each_ready([](const char* path) { ::rmdir(path); });
  }
  removals.fetch_sub(1);
  errno = before;
}

}  // namespace weft
