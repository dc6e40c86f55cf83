// What the fuzz targets share, and what they are.
//
// A target takes any bytes as a file. Either weft::Error comes, with a message of one line, or what
// was read holds together. Nothing else may be thrown, and the sanitizers watch the rest.
//
// Each is a program of the preset fuzz, with libFuzzer behind it:
//
//   packed_fuzz -max_len=1000 -dict=tests/fuzz/packed.dict FOLDER tests/fuzz/corpus/packed
//
// keeps what it finds in FOLDER; `make fuzz` runs all of them. fuzz_test calls each with every file
// of its corpus, so that what was once found stays found under every compiler. There, reached_* and
// found_* came from the fuzzer: for branches that only they take, and for what was wrong once.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "weft/core/error.h"

namespace weft::fuzz {

using Input = std::span<const uint8_t>;

void safetensors(Input input);  // safetensors files and the plans in them
void packed(Input input);       // packed files, and packed matrices in memory
void run(Input input);          // the files of a run: run.json, metrics.jsonl, a checkpoint
void toml(Input input);         // configuration files

// Neither an Error nor caught by anyone: the fuzzer stops, a test fails.
inline void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

// Only Error is caught. Its text goes to a terminal, as one line.
template <typename Action>
void error_or_success(Action action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string message = error.what();
    require(std::none_of(message.begin(), message.end(),
                         [](unsigned char c) { return c < 0x20 || c == 0x7f; }),
            "a control character in a message");
  }
}

inline std::string text_of(Input input) { return {input.begin(), input.end()}; }

// A file without a disk under it.
class MemoryFile {
 public:
  explicit MemoryFile(Input bytes) : fd_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    require(written == static_cast<ssize_t>(bytes.size()), "the input was not written");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace weft::fuzz
