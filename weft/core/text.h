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

// The fewest letters to insert, remove or replace to get from one word to the other.
size_t edit_distance(std::string_view a, std::string_view b);
// The word of `known`, which is not empty, that takes the fewest edits; the first of several.
const std::string& nearest_word(std::string_view word, std::span<const std::string> known);
// Whether somebody who wrote `word` may have meant `known`.
bool is_likely_typo(std::string_view word, std::string_view known);

// "[768, 3072]"
std::string shape_text(std::span<const int64_t> shape);

}  // namespace weft
