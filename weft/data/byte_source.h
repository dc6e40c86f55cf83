// ByteSource: the bytes of a file, plain or gzip, from front to back. Internal to train.
//
// Read in bounded pieces. A gzip stream must be whole, with the right checksum, and nothing but
// further gzip members may follow it.
// Every Error names the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace weft {

class ByteSource {
 public:
  enum class Form : uint8_t { kPlain, kGzip };

  explicit ByteSource(const std::filesystem::path& path, Form form = Form::kPlain);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& name() const { return name_; }
  bool gzip() const { return inflater_ != nullptr; }

  // Plain: the size of the file. Gzip: more than any stream of this size can hold. A size that the
  // file claims is compared with it before anything is allocated.
  uint64_t most_bytes() const;

  // `what` is for the Error if the bytes are not there.
  void read(std::span<uint8_t> out, const char* what);
  std::vector<uint8_t> read(uint64_t bytes, const char* what);  // allocates as the bytes arrive
  void expect_end();

 private:
  struct Inflater;

  uint64_t read_some(std::span<uint8_t> out);  // 0 at the end
  uint64_t read_file(std::span<uint8_t> out);
  uint64_t inflate_some(std::span<uint8_t> out);

  std::string name_;
  int fd_ = -1;
  uint64_t file_bytes_ = 0;
  std::unique_ptr<Inflater> inflater_;
};

}  // namespace weft
