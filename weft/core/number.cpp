#include "weft/core/number.h"

#include <charconv>
#include <type_traits>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

template <typename Number>
Number parse_in_range(std::string_view text, Number low, Number high) {
  std::string_view digits = text;
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  Number value{};
  const char* const end = digits.data() + digits.size();
  const auto [next, error] = std::from_chars(digits.data(), end, value);
  WEFT_CHECK(next == end && !digits.empty() && error != std::errc::invalid_argument,
             "'{}' is no {}", printable(text),
             std::is_integral_v<Number> ? "whole number" : "number");
  // Asked so that NaN, which is neither below nor above anything, is refused.
  const bool inside = value >= low && value <= high;
  WEFT_CHECK(error == std::errc() && inside, "{} is not in [{}, {}]", printable(text), low, high);
  return value;
}

}  // namespace

double parse_number(std::string_view text, double low, double high) {
  return parse_in_range(text, low, high);
}

int64_t parse_integer(std::string_view text, int64_t low, int64_t high) {
  return parse_in_range(text, low, high);
}

}  // namespace weft
