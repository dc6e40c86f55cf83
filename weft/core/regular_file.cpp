#include "weft/core/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

std::string file_name(const std::filesystem::path& path) { return printable(path.string(), 4096); }

// Until the end of the file, or `most` + 1 bytes: it may grow while it is read.
std::string read_to_end(int fd, uint64_t expected, uint64_t most, const std::string& name) {
  std::string text(std::min(expected, most) + 1, '\0');
  size_t size = 0;
  for (;;) {
    const ssize_t got = ::read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    WEFT_CHECK(got >= 0, "{}: cannot read: {}", name, std::strerror(errno));
    size += static_cast<size_t>(got);
    if (got == 0 || size > most) break;
    if (size == text.size()) text.resize(std::min<uint64_t>(2 * text.size(), most + 1));
  }
  text.resize(size);
  return text;
}

}  // namespace

int open_regular_file(const std::filesystem::path& path) {
  // O_NONBLOCK: a pipe without a writer must be an error here, not a hang.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  WEFT_CHECK(fd >= 0, "{}: cannot open: {}", file_name(path), std::strerror(errno));
  struct stat status {};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(fd);
    throw Error(fmt::format("{}: cannot open: not a regular file", file_name(path)));
  }
  return fd;
}

std::string read_small_file(const std::filesystem::path& path, uint64_t most) {
  const std::string name = file_name(path);
  const int fd = open_regular_file(path);
  struct stat status {};
  ::fstat(fd, &status);
  auto bytes = static_cast<uint64_t>(status.st_size);
  std::string text;
  try {
    if (bytes <= most) text = read_to_end(fd, bytes, most, name);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  bytes = std::max<uint64_t>(bytes, text.size());
  WEFT_CHECK(bytes <= most, "{}: {} bytes, accepted are at most {}", name, bytes, most);
  return text;
}

}  // namespace weft
