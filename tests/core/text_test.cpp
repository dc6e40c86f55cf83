// Text of others, made fit to print.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "weft/core/text.h"

namespace weft {
namespace {

TEST(Printable, LeavesWellFormedTextAlone) {
  for (const char* text : {"", "layer.0.weight", "größe", "重み", "\U0001f9f5", "a\\nb \"quoted\"",
                           "\u00a0", "\ud7ff", "\ue000", "\U0010ffff"}) {
    EXPECT_EQ(printable(text), text);
  }
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
  EXPECT_EQ(printable("\x1b[31m\x7f"), "\\x1b[31m\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(printable("\u0085\u009b"), "\\xc2\\x85\\xc2\\x9b");  // C1: next line, CSI
}

TEST(Printable, EscapesIllFormedUtf8) {
  EXPECT_EQ(printable("\xff"), "\\xff");
  EXPECT_EQ(printable("\x80z"), "\\x80z");                  // a tail without a lead
  EXPECT_EQ(printable("\xc3"), "\\xc3");                    // a lead without a tail
  EXPECT_EQ(printable("\xe2\x82"), "\\xe2\\x82");           // cut short
  EXPECT_EQ(printable("\xe2\x82z"), "\\xe2\\x82z");         //
  EXPECT_EQ(printable("\xc0\x8a"), "\\xc0\\x8a");           // overlong newline
  EXPECT_EQ(printable("\xe0\x80\x8a"), "\\xe0\\x80\\x8a");  // the same in three bytes
  EXPECT_EQ(printable("\xf0\x80\x80\x8a"), "\\xf0\\x80\\x80\\x8a");
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // past U+10FFFF
  EXPECT_EQ(printable("\xf5\x80\x80\x80"), "\\xf5\\x80\\x80\\x80");
}

TEST(Printable, CutsLongTextAndNeverInsideACharacter) {
  const std::string fits(120, 'a');
  EXPECT_EQ(printable(fits), fits);
  EXPECT_EQ(printable(fits + "a"), fits + "...");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("aäöü", 2), "aä...");
  EXPECT_LT(printable(std::string(1'000'000, '\n')).size(), 130u);
}

TEST(NearestWord, TakesTheFewestEdits) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(nearest_word("stps", std::vector<std::string>{"seed", "steps", "stops"}), "steps");
  EXPECT_TRUE(is_likely_typo("trian", "train"));
  EXPECT_TRUE(is_likely_typo("gem", "gemm"));
  EXPECT_FALSE(is_likely_typo("nonsense", "recipes"));
}

TEST(ShapeText, ListsTheDimensions) {
  EXPECT_EQ(shape_text(std::vector<int64_t>{}), "[]");
  EXPECT_EQ(shape_text(std::vector<int64_t>{768, 3072}), "[768, 3072]");
}

}  // namespace
}  // namespace weft
