// Numbers that a user writes: the one check of their range, for flags, configuration files and
// recipes.
#pragma once

#include <cstdint>
#include <string_view>

namespace weft {

// The number that the whole text is; a sign may precede it. Throws Error if it is none, or is not
// in [low, high]: infinity is in no finite range, and NaN in none at all.
double parse_number(std::string_view text, double low, double high);
int64_t parse_integer(std::string_view text, int64_t low, int64_t high);

}  // namespace weft
