// The tables of commands that train fit a terminal, and have all columns with --wide.
#include <gtest/gtest.h>

#include "tests/cli/table_text.h"
#include "tests/cli/trainer_commands.h"

namespace weft::test {
namespace {

std::vector<std::string> with(std::vector<std::string> command, const char* flag) {
  command.emplace_back(flag);
  return command;
}

std::string headings(const std::string& text) { return text.substr(0, text.find('\n')); }

TEST_F(TrainerCommands, TablesFitATerminal) {
  ASSERT_EQ(run(train("dense", {"--recipe", "dense"}, "4")).code, 0);
  const std::vector<std::pair<std::vector<std::string>, std::string>> commands = {
      {comparison("32", "16", {"--steps", "6", "--dense-flips", "--plan", "sparse"}), "of dense"},
      {{"recovery", folder("dense"), "--pattern", "2:4"}, "below absorption"},
      {{"bench", "layer", "--shape", "64x64x64", "--recipe", "s-ste+backward=bi-mask", "--recipe",
        "lbc", "--rounds", "1", "--plan", "sparse"},
       "retained"},
      {{"bench", "step", "--tokens", "32", "--context", "16", "--width", "16", "--hidden", "32",
        "--heads", "2", "--rounds", "1", "--no-memory", "--plan", "sparse"},
       "bwd_w ms"}};
  for (const auto& [command, column] : commands) {
    const Outcome narrow = run(command);
    ASSERT_EQ(narrow.code, 0) << narrow.err;
    EXPECT_LE(widest_line(narrow.out), kColumns) << narrow.out;
    EXPECT_FALSE(contains(headings(narrow.out), column)) << narrow.out;
    const Outcome wide = run(with(command, "--wide"));
    EXPECT_GT(widest_line(wide.out), kColumns) << wide.out;
    EXPECT_TRUE(contains(headings(wide.out), column)) << wide.out;
  }
}

TEST_F(TrainerCommands, ARunPrintsLinesThatFitATerminal) {
  const std::vector<std::string> command = train(
      "run", {"--plan", "auto", "--rule", "hidden[0-9]*(some|more|words|of|a|long|rule)?=s-ste"},
      "40");
  const Outcome outcome = run(command);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(contains(outcome.out, "Measured in this run.")) << outcome.out;
  EXPECT_LE(widest_line(outcome.out), kColumns) << outcome.out;
}

}  // namespace
}  // namespace weft::test
