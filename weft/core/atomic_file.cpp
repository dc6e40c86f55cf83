#include "weft/core/atomic_file.h"

#include <fcntl.h>
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

// Paths of the temporary files, for remove_unfinished_files(): a signal handler must not allocate
// or lock, so a fixed table of C strings. A file that finds no slot is merely not removed when a
// signal ends the program.
constexpr size_t kSlots = 4096;
std::array<std::atomic<char*>, kSlots> unfinished;

int claim_slot(const std::string& path) {
  char* copy = ::strdup(path.c_str());
  for (size_t slot = 0; copy != nullptr && slot < kSlots; ++slot) {
    char* expected = nullptr;
    if (unfinished[slot].compare_exchange_strong(expected, copy)) return static_cast<int>(slot);
  }
  std::free(copy);
  return -1;
}

void release_slot(int slot) noexcept {
  if (slot >= 0) std::free(unfinished[static_cast<size_t>(slot)].exchange(nullptr));
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
    slot_ = claim_slot(temporary_.string());
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) break;
    const int failure = errno;
    release_slot(std::exchange(slot_, -1));
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
      slot_(std::exchange(other.slot_, -1)) {}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (fd_ < 0) return;
  ::close(std::exchange(fd_, -1));
  ::unlink(temporary_.c_str());
  release_slot(std::exchange(slot_, -1));
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
  release_slot(std::exchange(slot_, -1));
  sync_folder(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
}

void write_file_atomically(const fs::path& target, std::string_view text) {
  AtomicFile file(target);
  file.write_at(0, std::as_bytes(std::span(text)));
  file.commit();
}

void remove_unfinished_files() noexcept {
  for (std::atomic<char*>& slot : unfinished) {
    if (const char* path = slot.load()) ::unlink(path);
  }
}

}  // namespace weft
