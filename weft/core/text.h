// Text from outside (tensor names, JSON, file contents) made fit for one line of a terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// Control characters and ill-formed UTF-8 as \n, \x1b ...; cut with "..." after `most` bytes.
std::string printable(std::string_view text, size_t most = 120);

// Bytes of the well-formed UTF-8 sequence at the front of `text`, which is not empty; 0 if there is
// none.
size_t utf8_length(std::string_view text);
void append_utf8(std::string& text, char32_t letter);

// "[768, 3072]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace weft
