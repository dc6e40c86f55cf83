// Patterns: text and back, and what is refused.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/core/pattern.h"
#include "weft/core/text.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

TEST(Pattern, ParsesWhatItPrints) {
  for (int group = 1; group <= Pattern::kMaxGroup; ++group) {
    for (int keep = 1; keep <= group; ++keep) {
      for (int share = 1; share <= Pattern::kMaxShare; share *= 2) {
        const Pattern pattern(keep, group, share);
        ASSERT_EQ(Pattern::parse(pattern.str()), pattern) << pattern.str();
        ASSERT_EQ(pattern.block(), group * share);
      }
    }
  }
  EXPECT_EQ(Pattern(2, 4).str(), "2:4");
  EXPECT_EQ(Pattern(2, 4, 2).str(), "2:4x2");
  EXPECT_EQ(Pattern::parse("16:32x8"), Pattern(16, 32, 8));
  EXPECT_EQ(Pattern::parse("2:4x1"), Pattern(2, 4));
}

TEST(Pattern, RefusesTextAndSaysWhatIsAccepted) {
  for (const char* text :
       {"4:2",   "0:4",  "2:4x3", "abc",   "",     "2:65",          "02:4",  "2:4x",   "2:4x64",
        " 2:4",  "2:4 ", "2:4x0", "-1:4",  "2:04", "99999999999:4", "2:4\n", "2:4x02", "+2:4",
        "2 : 4", "2:",   ":4",    "2:4:2", "0:0",  "2:99999999999", "2/4",   "2:4X2",  "0x2:4"}) {
    const std::string message = message_of([&] { Pattern::parse(text); });
    EXPECT_TRUE(contains(message, "accepted is keep:group")) << '\'' << text << "': " << message;
    EXPECT_TRUE(contains(message, fmt::format("'{}'", printable(text)))) << message;
    EXPECT_TRUE(contains(message, "2:4x2")) << message;
  }
}

TEST(Pattern, RefusalOfTextFromAFileStaysOneLine) {
  const std::string message = message_of([] { Pattern::parse("2:4\n\x1b[31mred"); });
  EXPECT_FALSE(contains(message, "\n")) << message;
  EXPECT_FALSE(contains(message, "\x1b")) << message;
  EXPECT_LT(message_of([] { Pattern::parse(std::string(100'000, '2')); }).size(), 1000u);
}

TEST(Pattern, RefusesNumbersOutOfRange) {
  const int kLargest = std::numeric_limits<int>::max();
  for (const auto& [keep, group, share] : std::vector<std::array<int, 3>>{{0, 4, 1},
                                                                          {5, 4, 1},
                                                                          {-1, 4, 1},
                                                                          {1, 65, 1},
                                                                          {1, kLargest, 1},
                                                                          {2, 4, 0},
                                                                          {2, 4, -2},
                                                                          {2, 4, 3},
                                                                          {2, 4, 64},
                                                                          {2, 4, kLargest}}) {
    EXPECT_THROW(Pattern(keep, group, share), Error) << keep << ':' << group << 'x' << share;
  }
}

}  // namespace
}  // namespace weft
