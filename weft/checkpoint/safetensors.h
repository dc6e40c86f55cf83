// One safetensors file: read in bounded pieces, or written atomically.
//
// Files are read with pread and never mapped: a file that shrinks while it is read is an Error
// that names it, not a signal.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/header.h"
#include "weft/core/atomic_file.h"

namespace weft {

class SafetensorsReader {
 public:
  // Opens the file and checks the whole header; no tensor is read.
  explicit SafetensorsReader(const std::filesystem::path& path);
  ~SafetensorsReader();
  SafetensorsReader(SafetensorsReader&& other) noexcept;
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(SafetensorsReader&&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const Header& header() const { return header_; }

  // Fills `out` with bytes of the tensor, from `offset` bytes after its first.
  void read(const TensorInfo& tensor, uint64_t offset, std::span<std::byte> out) const;

 private:
  void read_exactly(uint64_t offset, std::span<std::byte> out, const std::string& what) const;

  std::filesystem::path path_;
  int fd_ = -1;
  Header header_;
  uint64_t data_begin_ = 0;
};

class SafetensorsWriter {
 public:
  // Lays the tensors out in the given order, whatever their offsets were.
  SafetensorsWriter(const std::filesystem::path& target, std::vector<TensorInfo> tensors,
                    const Metadata& metadata);

  // Pieces of a tensor may come in any order, each once.
  void write(const std::string& name, uint64_t offset, std::span<const std::byte> bytes);

  void sync();    // checks that every byte of every tensor was written
  void commit();  // sync, and the file takes its name
  void commit_as(const std::filesystem::path& path);  // or another one, beside it

 private:
  struct Slot {
    TensorInfo tensor;
    uint64_t written = 0;
  };
  AtomicFile file_;
  std::map<std::string, Slot> slots_;
  uint64_t data_begin_ = 0;
};

}  // namespace weft
