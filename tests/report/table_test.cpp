// Tables: their columns, and how they fit a limit.
#include "weft/report/table.h"

#include <gtest/gtest.h>

#include "weft/core/error.h"

namespace weft {
namespace {

TEST(Table, AlignsColumns) {
  Table table({"name", ">n", "text"});
  table.add({"größe", "7", "a"});
  table.add({"b", "1000", ""});
  EXPECT_EQ(table.str(),
            "name      n  text\n"
            "-----  ----  ----\n"
            "größe     7  a\n"
            "b      1000\n");
  EXPECT_THROW(table.add({"too", "few"}), Error);
  EXPECT_THROW(table.can_spare({"none"}), Error);
}

TEST(Table, SparesWhatSaysNothingFirstThenWhatItIsTold) {
  Table table({"name", ">time", "empty", ">n"});
  table.add({"x", "12.34 ms", "-", "1"});
  table.add({"y", "56.78 ms", "-", "2"});
  table.can_spare({"time", "empty"});
  const std::string full = table.str(), first = full.substr(0, full.find('\n'));
  EXPECT_EQ(first, "name      time  empty  n");
  EXPECT_EQ(table.str(first.size()), full) << "it fits";
  EXPECT_EQ(table.str(first.size() - 1),
            "name      time  n\n"
            "----  --------  -\n"
            "x     12.34 ms  1\n"
            "y     56.78 ms  2\n");
  EXPECT_EQ(table.str(16),
            "name  n\n"
            "----  -\n"
            "x     1\n"
            "y     2\n");
}

TEST(Table, WrapsTextInTheLastColumn) {
  Table table({"recipe", "schedule"});
  table.add({"a", "mask every step; dense for the last sixth of all steps"});
  table.add({"b", "none"});
  EXPECT_EQ(table.str(30),
            "recipe  schedule\n"
            "------  ----------------------\n"
            "a       mask every step; dense\n"
            "        for the last sixth of\n"
            "        all steps\n"
            "b       none\n");
  // A word that is longer than the column has a line of its own, in full.
  Table word({"a", "text"});
  word.add({"1", "the " + std::string(40, 'x') + " end"});
  EXPECT_EQ(word.str(20),
            "a  text\n-  -----------------\n1  the\n   " + std::string(40, 'x') + "\n   end\n");
}

TEST(Table, CutsNamesInTheMiddle) {
  Table table({"tensor", ">n"});
  table.add({"encoder.layer.0.attention.ö.output.dense.weight", "1"});
  table.add({"short", "22"});
  EXPECT_EQ(table.str(40),
            "tensor                                 n\n"
            "------------------------------------  --\n"
            "encoder.layer.0.a…utput.dense.weight   1\n"
            "short                                 22\n");
  // Never shorter than what can be told apart: then the line is longer.
  EXPECT_EQ(table.str(10).find('\n'), 28u);
}

TEST(Table, NeverExceedsALimitThatItCanMeet) {
  Table table({"tensor", "shape", ">density", ">time", "verdict"});
  for (int i = 0; i < 4; ++i) {
    table.add({std::string(static_cast<size_t>(30 + 20 * i), 'x'), "[96, 384]", "50.00%",
               "12.34 ms", "FAILS at [2, 7] (out), and more words about it"});
  }
  table.can_spare({"time"});
  for (size_t limit = 80; limit < 200; ++limit) {
    const std::string text = table.str(limit);
    size_t widest = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      size_t width = 0;
      for (size_t i = begin; i < end; ++i) width += (text[i] & 0xc0) != 0x80;
      widest = std::max(widest, width);
      begin = end + 1;
    }
    EXPECT_LE(widest, limit);
  }
}

}  // namespace
}  // namespace weft
