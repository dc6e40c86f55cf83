// How wide what a command prints is.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>

namespace weft::test {

constexpr size_t kColumns = 100;  // of a terminal, for which tables are made

inline size_t widest_line(const std::string& text) {
  size_t widest = 0, width = 0;
  for (const char c : text) {
    if (c != '\n') width += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    widest = std::max(widest, width);
    if (c == '\n') width = 0;
  }
  return widest;
}

}  // namespace weft::test
