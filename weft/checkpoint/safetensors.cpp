#include "weft/checkpoint/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/regular_file.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr uint64_t kLengthBytes = 8;

uint64_t size_of(int fd) {
  struct stat status {};
  return ::fstat(fd, &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : path_(path), fd_(open_regular_file(path)) {
  try {
    const uint64_t file_bytes = size_of(fd_);
    WEFT_CHECK(file_bytes >= kLengthBytes,
               "{}: {} bytes is too short for a safetensors file: the file is truncated",
               path.string(), file_bytes);
    std::byte prefix[kLengthBytes];
    read_exactly(0, prefix, "the header length");
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) length |= static_cast<uint64_t>(prefix[i]) << (8 * i);
    WEFT_CHECK(length <= kMaxHeaderBytes,
               "{}: header length {} is more than the {} bytes that the format allows: not a "
               "safetensors file",
               path.string(), length, kMaxHeaderBytes);
    WEFT_CHECK(length <= file_bytes - kLengthBytes,
               "{}: header length {} reaches past the end of the file, which has {} bytes",
               path.string(), length, file_bytes);
    std::string json(length, '\0');
    read_exactly(kLengthBytes, std::as_writable_bytes(std::span(json)), "the header");
    data_begin_ = kLengthBytes + length;
    header_ = parse_header(json, file_bytes - data_begin_, path.string());
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

SafetensorsReader::SafetensorsReader(SafetensorsReader&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      header_(std::move(other.header_)),
      data_begin_(other.data_begin_) {}

SafetensorsReader::~SafetensorsReader() {
  if (fd_ >= 0) ::close(fd_);
}

void SafetensorsReader::read_exactly(uint64_t offset, std::span<std::byte> out,
                                     const std::string& what) const {
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    WEFT_CHECK(got >= 0, "{}: cannot read {}: {}", path_.string(), what, std::strerror(errno));
    WEFT_CHECK(got > 0, "{}: the file ends at byte {}, inside {}: it shrank while it was read",
               path_.string(), offset, what);
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
}

void SafetensorsReader::read(const TensorInfo& tensor, uint64_t offset,
                             std::span<std::byte> out) const {
  WEFT_CHECK(offset <= tensor.bytes() && out.size() <= tensor.bytes() - offset,
             "{}: tensor '{}' has {} bytes: {} bytes from {} are not in it", path_.string(),
             printable(tensor.name), tensor.bytes(), out.size(), offset);
  read_exactly(data_begin_ + tensor.begin + offset, out,
               fmt::format("tensor '{}'", printable(tensor.name)));
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& target,
                                     std::vector<TensorInfo> tensors, const Metadata& metadata)
    : file_(target) {
  std::string header;
  try {
    header = format_header(tensors, metadata);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", target.string(), error.what()));
  }
  file_.write_at(0, std::as_bytes(std::span(header)));
  data_begin_ = header.size();
  for (TensorInfo& tensor : tensors) {
    std::string name = tensor.name;
    slots_[std::move(name)].tensor = std::move(tensor);
  }
}

void SafetensorsWriter::write(const std::string& name, uint64_t offset,
                              std::span<const std::byte> bytes) {
  const auto found = slots_.find(name);
  WEFT_CHECK(found != slots_.end(), "{}: tensor '{}' is not in the layout of the file",
             file_.target().string(), printable(name));
  Slot& slot = found->second;
  WEFT_CHECK(offset <= slot.tensor.bytes() && bytes.size() <= slot.tensor.bytes() - offset,
             "{}: tensor '{}' has {} bytes: {} bytes at {} do not fit", file_.target().string(),
             printable(name), slot.tensor.bytes(), bytes.size(), offset);
  file_.write_at(data_begin_ + slot.tensor.begin + offset, bytes);
  slot.written += bytes.size();
}

void SafetensorsWriter::sync() {
  for (const auto& [name, slot] : slots_) {
    WEFT_CHECK(slot.written == slot.tensor.bytes(), "{}: tensor '{}': {} of {} bytes were written",
               file_.target().string(), printable(name), slot.written, slot.tensor.bytes());
  }
  file_.sync();
}

void SafetensorsWriter::commit() { commit_as(file_.target()); }

void SafetensorsWriter::commit_as(const std::filesystem::path& path) {
  sync();
  file_.commit_as(path);
}

}  // namespace weft
