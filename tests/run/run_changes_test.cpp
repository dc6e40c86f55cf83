// The changes of a run that was resumed with other options, and the commands that repeat it.
#include "weft/run/run_changes.h"

#include <gtest/gtest.h>

#include "tests/support.h"
#include "weft/run/repeat_command.h"

namespace weft::test {
namespace {

RunOptions options_with(int64_t steps, double rate) {
  RunOptions options;
  options.model = "mlp";
  options.steps = steps;
  options.learning_rate = rate;
  return options.resolved();
}

TEST(RunChanges, HaveTheOptionsThatDiffer) {
  const auto changes = changes_with({}, options_with(12, 0.01), options_with(18, 0.001), 7);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].step, 7);
  EXPECT_EQ(changes[0].text(), "steps 12 to 18, learning-rate 0.01 to 0.001");
  const RunOptions before = changes[0].undone(options_with(18, 0.001));
  EXPECT_EQ(before.steps, 12);
  EXPECT_EQ(before.learning_rate, 0.01);
  EXPECT_TRUE(changes_with({}, options_with(12, 0.01), options_with(12, 0.01), 7).empty());
}

TEST(RunChanges, AreForgottenWhereTheRunGoesBackBehindThem) {
  auto changes = changes_with({}, options_with(12, 0.01), options_with(12, 0.1), 8);
  changes = changes_with(changes, options_with(12, 0.1), options_with(12, 0.001), 4);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].step, 4);
  EXPECT_EQ(changes[0].text(), "learning-rate 0.01 to 0.001");
  EXPECT_TRUE(changes_with(changes, options_with(12, 0.001), options_with(12, 0.01), 2).empty());
}

TEST(RunChanges, GoThroughJson) {
  const auto changes = changes_with({}, options_with(12, 0.01), options_with(18, 0.01), 12);
  Json record = Json::object();
  EXPECT_TRUE(read_changes(record, "run.json").empty());
  record["changes"] = Json::parse(to_json(changes).dump(), "test");
  const Json again = to_json(read_changes(record, "run.json"));
  EXPECT_EQ(Json::parse(again.dump(), "test"), record["changes"]);
  const auto problem = [&](const char* text) {
    record["changes"] = Json::parse(text, "test");
    return message_of([&] { read_changes(record, "run.json"); });
  };
  EXPECT_EQ(problem("{}"), "run.json: 'changes' is not a list");
  EXPECT_EQ(problem("[{}]"), "run.json: 'changes': an entry has no 'step'");
  EXPECT_EQ(problem(R"([{"step": 1, "was": {}}])"), "run.json: 'changes': an entry has no 'is'");
  EXPECT_EQ(problem(R"([{"step": 1, "was": {"steps": 3}, "is": {}}])"),
            "run.json: 'changes': 'steps' is in 'was' alone");
  EXPECT_TRUE(
      contains(problem(R"([{"step": 1, "was": {"stps": 3}, "is": {}}])"), "did you mean 'steps'?"));
}

TEST(Repetition, OfARunThatWasExtendedHasACommandForEachStretch) {
  std::vector<RunChange> changes =
      changes_with({}, options_with(12, 0.01), options_with(18, 0.002), 12);
  changes = changes_with(changes, options_with(18, 0.002), options_with(30, 0.002), 18);
  const Repetition found = repetition_of("runs/a", options_with(30, 0.002), changes);
  EXPECT_EQ(found.obstacle, "");
  ASSERT_EQ(found.commands.size(), 3u);
  EXPECT_EQ(found.commands[0],
            "weft train --model mlp --recipe s-ste --pattern 2:4 --steps 12 --learning-rate 0.01 "
            "--plan runs/a/run.json --out runs/a-again");
  EXPECT_EQ(found.commands[1], "weft train --resume runs/a-again --steps 18 --learning-rate 0.002");
  EXPECT_EQ(found.commands[2], "weft train --resume runs/a-again --steps 30");
}

TEST(Repetition, OfARunThatWasChangedOnTheWayIsNotPossible) {
  const auto changes = changes_with({}, options_with(12, 0.01), options_with(12, 0.002), 5);
  const Repetition found = repetition_of("runs/a", options_with(12, 0.002), changes);
  EXPECT_TRUE(found.commands.empty());
  EXPECT_EQ(found.obstacle, "changed after step 5: learning-rate 0.01 to 0.002");
}

TEST(Repetition, NeedNotFollowWhatGivesTheSameModel) {
  RunOptions before = options_with(12, 0.01), now = before;
  before.data = "text:/old/book";
  now.data = "text:/new/book";
  now.exports = "packed";
  now.checkpoint_every = 7;
  const Repetition found = repetition_of("r", now, changes_with({}, before, now, 5));
  ASSERT_EQ(found.commands.size(), 1u);
  EXPECT_EQ(found.commands[0], repeat_command("r", now));
}

}  // namespace
}  // namespace weft::test
