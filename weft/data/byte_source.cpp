#include "weft/data/byte_source.h"

#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr size_t kMostNameBytes = 4096;  // in messages; a folder may hold names of any bytes
constexpr uint64_t kPieceBytes = uint64_t{1} << 22;
// Deflate codes at most 258 bytes in two bits; zlib's documentation has 1032 as the limit.
constexpr uint64_t kMostInflation = 1032;
constexpr int kGzipOnly =
    16;  // added to the window bits: zlib wants a gzip header and its checksum

}  // namespace

struct ByteSource::Inflater {
  z_stream stream{};
  std::array<uint8_t, size_t{1} << 16> input;
  bool between_members = true;  // where the file may end
  bool any_member = false;

  Inflater() {
    WEFT_CHECK(inflateInit2(&stream, MAX_WBITS + kGzipOnly) == Z_OK, "zlib cannot be initialised");
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

ByteSource::ByteSource(const std::filesystem::path& path, Form form)
    : name_(printable(path.string(), kMostNameBytes)) {
  if (form == Form::kGzip) inflater_ = std::make_unique<Inflater>();
  fd_ = open_regular_file(path);
  struct stat status {};
  ::fstat(fd_, &status);
  file_bytes_ = static_cast<uint64_t>(status.st_size);
}

ByteSource::~ByteSource() {
  if (fd_ >= 0) ::close(fd_);
}

uint64_t ByteSource::most_bytes() const {
  if (!gzip()) return file_bytes_;
  return std::min(file_bytes_, UINT64_MAX / kMostInflation) * kMostInflation;
}

void ByteSource::read(std::span<uint8_t> out, const char* what) {
  while (!out.empty()) {
    const uint64_t got = read_some(out);
    WEFT_CHECK(got > 0, "{}: the file ends inside {}: it is truncated", name_, what);
    out = out.subspan(got);
  }
}

std::vector<uint8_t> ByteSource::read(uint64_t bytes, const char* what) {
  WEFT_CHECK(bytes <= most_bytes(), "{}: {} would be {} bytes, more than the file can hold", name_,
             what, bytes);
  std::vector<uint8_t> all;
  if (!gzip()) all.reserve(bytes);
  while (all.size() < bytes) {
    const size_t begin = all.size();
    all.resize(std::min(bytes, begin + kPieceBytes));
    read(std::span(all).subspan(begin), what);
  }
  return all;
}

void ByteSource::expect_end() {
  uint8_t more = 0;
  WEFT_CHECK(read_some(std::span(&more, 1)) == 0, "{}: the file has trailing bytes", name_);
}

uint64_t ByteSource::read_some(std::span<uint8_t> out) {
  return gzip() ? inflate_some(out) : read_file(out);
}

uint64_t ByteSource::read_file(std::span<uint8_t> out) {
  for (;;) {
    const ssize_t got = ::read(fd_, out.data(), out.size());
    if (got < 0 && errno == EINTR) continue;
    WEFT_CHECK(got >= 0, "{}: cannot read: {}", name_, std::strerror(errno));
    return static_cast<uint64_t>(got);
  }
}

uint64_t ByteSource::inflate_some(std::span<uint8_t> out) {
  Inflater& gz = *inflater_;
  const uint64_t wanted = std::min<uint64_t>(out.size(), kPieceBytes);
  gz.stream.next_out = out.data();
  gz.stream.avail_out = static_cast<uInt>(wanted);
  while (gz.stream.avail_out == wanted) {
    if (gz.stream.avail_in == 0) {
      const uint64_t got = read_file(gz.input);
      if (got == 0) {
        WEFT_CHECK(gz.between_members && gz.any_member, "{}: the gzip stream is truncated", name_);
        return 0;
      }
      gz.stream.next_in = gz.input.data();
      gz.stream.avail_in = static_cast<uInt>(got);
    }
    gz.between_members = false;
    const int status = inflate(&gz.stream, Z_NO_FLUSH);
    WEFT_CHECK(status == Z_OK || status == Z_STREAM_END, "{}: not a valid gzip file: {}", name_,
               gz.stream.msg != nullptr ? gz.stream.msg : "zlib failed");
    if (status == Z_STREAM_END) {
      gz.between_members = gz.any_member = true;
      WEFT_CHECK(inflateReset(&gz.stream) == Z_OK, "{}: zlib failed", name_);
    }
  }
  return wanted - gz.stream.avail_out;
}

}  // namespace weft
