#include "weft/core/pattern.h"

#include <charconv>

#include "weft/core/error.h"
#include "weft/core/text.h"

namespace weft {
namespace {

constexpr const char* kAccepted =
    "accepted is keep:group with 1 <= keep <= group <= 64, as in 2:4, optionally x and the number "
    "of rows that share it (1, 2, 4, 8, 16 or 32), as in 2:4x2";

bool is_share(int share) {
  return share >= 1 && share <= Pattern::kMaxShare && (share & (share - 1)) == 0;
}

bool is_valid(int keep, int group, int share) {
  return 1 <= keep && keep <= group && group <= Pattern::kMaxGroup && is_share(share);
}

// Takes a number without leading zeros off the front of `text`.
bool take_number(std::string_view& text, int& number) {
  if (text.empty() || text[0] < '1' || text[0] > '9') return false;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool take_char(std::string_view& text, char wanted) {
  if (text.empty() || text[0] != wanted) return false;
  text.remove_prefix(1);
  return true;
}

}  // namespace

Pattern::Pattern(int keep, int group, int share) : keep_(keep), group_(group), share_(share) {
  WEFT_CHECK(is_valid(keep, group, share), "pattern {}:{}x{}: {}", keep, group, share, kAccepted);
}

Pattern Pattern::parse(std::string_view text) {
  std::string_view rest = text;
  int keep = 0, group = 0, share = 1;
  const bool well_formed =
      take_number(rest, keep) && take_char(rest, ':') && take_number(rest, group) &&
      (rest.empty() || (take_char(rest, 'x') && take_number(rest, share))) && rest.empty();
  WEFT_CHECK(well_formed && is_valid(keep, group, share), "pattern '{}': {}", printable(text),
             kAccepted);
  return Pattern(keep, group, share);
}

std::string Pattern::str() const {
  return share_ == 1 ? fmt::format("{}:{}", keep_, group_)
                     : fmt::format("{}:{}x{}", keep_, group_, share_);
}

}  // namespace weft
