#include "weft/core/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

namespace weft {
namespace {

std::string escaped(char c) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  return fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
}

bool is_control(std::string_view sequence) {
  const auto first = static_cast<unsigned char>(sequence[0]);
  const bool c1 =
      sequence.size() == 2 && first == 0xc2 && static_cast<unsigned char>(sequence[1]) < 0xa0;
  return first < 0x20 || first == 0x7f || c1;
}

}  // namespace

size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80   ? 1
                        : lead < 0xc2 ? 0
                        : lead < 0xe0 ? 2
                        : lead < 0xf0 ? 3
                        : lead < 0xf5 ? 4
                                      : 0;
  if (length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and what is past U+10FFFF show in the second byte.
  const unsigned char lowest = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char highest = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (length > 1 && (byte(1) < lowest || byte(1) > highest)) return 0;
  return length;
}

void append_utf8(std::string& text, char32_t letter) {
  const auto byte = [&](char32_t bits) { text += static_cast<char>(bits); };
  const auto further = [&](int shift) { byte(0x80 | ((letter >> shift) & 0x3f)); };
  if (letter < 0x80) {
    byte(letter);
  } else if (letter < 0x800) {
    byte(0xc0 | letter >> 6);
    further(0);
  } else if (letter < 0x10000) {
    byte(0xe0 | letter >> 12);
    further(6);
    further(0);
  } else {
    byte(0xf0 | letter >> 18);
    further(12);
    further(6);
    further(0);
  }
}

std::string printable(std::string_view text, size_t most) {
  std::string result;
  while (!text.empty()) {
    if (result.size() >= most) return result + "...";
    const size_t length = utf8_length(text);
    const std::string_view sequence = text.substr(0, length == 0 ? 1 : length);
    if (length == 0 || is_control(sequence)) {
      for (const char c : sequence) result += escaped(c);
    } else {
      result += sequence;
    }
    text.remove_prefix(sequence.size());
  }
  return result;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

const std::string& nearest_word(std::string_view word, std::span<const std::string> known) {
  return *std::ranges::min_element(
      known, {}, [&](const std::string& each) { return edit_distance(word, each); });
}

bool is_likely_typo(std::string_view word, std::string_view known) {
  // Two letters that changed places are two edits.
  return edit_distance(word, known) <= (known.size() < 5 ? 1 : known.size() < 9 ? 2 : 3);
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

}  // namespace weft
