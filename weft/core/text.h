// Text from outside (tensor names, JSON, file contents) made fit for one line of a terminal.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace weft {

// Control characters and ill-formed UTF-8 as \n, \x1b ...; cut with "..." after `most` bytes.
std::string printable(std::string_view text, size_t most = 120);

// "[768, 3072]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace weft
