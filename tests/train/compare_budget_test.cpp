// compare --budget: the steps that a time is, and that they are counted once.
#include "weft/train/compare_budget.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/train/compare.h"
#include "weft/train/compare_runs.h"

namespace weft::test {
namespace {

CompareOptions budget_of(double seconds) {
  CompareOptions options;
  options.run = small_run("mlp");
  options.run.steps = 7;  // of no meaning
  options.recipes = {"sr-ste", "t-sr-ste@1:4"};
  options.patterns = {"2:4"};
  options.seeds = 2;
  options.budget = seconds;
  return options;
}

// A budget that is some dozens of steps, on this machine at this moment.
double some_seconds(const std::filesystem::path& folder) {
  RunOptions options = small_run("mlp", "dense");
  Trainer trainer = Trainer::begin(folder, make_parts(options));
  trainer.advance(options.steps);
  return 60.0 * trainer.finish().step_seconds;
}

Json budget_json(const std::filesystem::path& folder) {
  return Json::parse(contents(folder / "budget.json"), "budget.json");
}

TEST(Budget, BecomesStepsInProportionToTheTimesOfARehearsal) {
  const ScratchFolder scratch;
  const auto folder = scratch / "a";
  const CompareOptions options = budget_of(some_seconds(scratch / "probe"));
  const auto result = compare(folder, options, nullptr, [](double) {});
  ASSERT_TRUE(result);
  const Json file = budget_json(folder);
  EXPECT_EQ(file["seconds"].get<double>(), options.budget);
  ASSERT_EQ(result->rows.size(), 3u);

  const auto rehearsed = folder / "budget";
  const double dense = run_seconds(rehearsed / "dense-seed1", kRehearsal);
  const auto dense_steps = static_cast<int64_t>(options.budget / (dense / kRehearsal));
  EXPECT_EQ(result->rows[0].steps, std::max<int64_t>(1, dense_steps));
  const char* folders[] = {"sr-ste-2of4-seed1", "t-sr-ste-1of4-seed1"};
  for (size_t i = 1; i < 3; ++i) {
    const double ratio = dense / run_seconds(rehearsed / folders[i - 1], kRehearsal);
    const auto expected = static_cast<int64_t>(static_cast<double>(dense_steps) * ratio);
    EXPECT_EQ(result->rows[i].steps, std::max<int64_t>(1, expected)) << folders[i - 1];
  }
  // Schedules are laid over these steps, and the seconds are those that were taken.
  for (const CompareRow& row : result->rows) {
    double seconds = 0.0;
    for (const int64_t seed : {1, 2}) {
      const auto run = folder / run_folder_name(row.recipe, row.pattern, seed);
      EXPECT_EQ(resume_options(run).steps, row.steps);
      const std::vector<Json> lines = step_lines(run);
      EXPECT_EQ(static_cast<int64_t>(lines.size()), row.steps);
      for (const Json& line : lines) seconds += 0.5e-3 * line["step_ms"].get<double>();
    }
    EXPECT_NEAR(row.train_seconds, seconds, 1e-3) << row.recipe;
  }
}

TEST(Budget, IsCountedOnceAndThenUsedAgain) {
  const ScratchFolder scratch;
  const auto folder = scratch / "a";
  CompareOptions options = budget_of(some_seconds(scratch / "probe"));
  options.recipes = {"sr-ste"};
  options.seeds = 1;
  std::atomic<int> stop{0};
  EXPECT_FALSE(compare(folder, options, &stop, [&](double done) { stop = done > 0.1; }))
      << "after the rehearsal";
  const std::string counted = contents(folder / "budget.json");
  ASSERT_TRUE(compare(folder, options, nullptr, [](double) {}));
  EXPECT_EQ(contents(folder / "budget.json"), counted);

  // What is written is what is used, whatever it is.
  std::filesystem::remove_all(folder / "sr-ste-2of4-seed1");
  Json changed = budget_json(folder);
  changed["runs"]["sr-ste@2:4"]["steps"] = 9;
  put(folder / "budget.json", changed.dump(2));
  const auto again = compare(folder, options, nullptr, [](double) {});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->rows[1].steps, 9);
  EXPECT_EQ(step_lines(folder / "sr-ste-2of4-seed1").size(), 9u);

  // A recipe that is added: in proportion to the steps that dense has had.
  changed = budget_json(folder);
  const int64_t dense_steps = changed["runs"]["dense"]["steps"].get<int64_t>();
  options.recipes = {"sr-ste", "s-ste"};
  const auto more = compare(folder, options, nullptr, [](double) {});
  ASSERT_TRUE(more);
  EXPECT_EQ(more->rows[0].steps, dense_steps);
  EXPECT_EQ(more->rows[1].steps, 9);
  const double ratio = run_seconds(folder / "budget" / "dense-seed1-turns2", kRehearsal) /
                       run_seconds(folder / "budget" / "s-ste-2of4-seed1", kRehearsal);
  const auto expected = static_cast<int64_t>(static_cast<double>(dense_steps) * ratio);
  EXPECT_EQ(more->rows[2].steps, std::max<int64_t>(1, expected));

  const auto message = [&](const CompareOptions& other) {
    return message_of([&] { compare(folder, other, nullptr, [](double) {}); });
  };
  CompareOptions other = options;
  other.budget *= 2.0;
  EXPECT_TRUE(contains(message(other), "choose another folder")) << message(other);
  other = options;
  other.run.batch = 4;
  EXPECT_TRUE(contains(message(other), "counted with other options")) << message(other);
  put(folder / "budget.json", "{}");
  EXPECT_TRUE(contains(message(options), "not the steps of a budget")) << message(options);
}

// Its λ costs no time in a step, so none is searched for in a rehearsal.
TEST(Budget, ARehearsalFindsNoLambda) {
  const ScratchFolder scratch;
  CompareOptions options = budget_of(1.0);
  options.recipes = {"sr-ste+decay=auto"};
  std::vector<CompareEntry> entries = compare_entries(options);
  TrainerSetup setup;
  setup.planner = std::make_shared<Planner>(PlanMode::kSparse);
  ASSERT_TRUE(count_steps(scratch / "a", options, entries, setup, [](double) {}));
  EXPECT_GE(entries[1].steps, 1);
  const auto rehearsed = scratch / "a" / "budget" / "sr-ste+decay=gradient+lambda=0-2of4-seed1";
  EXPECT_EQ(step_lines(rehearsed).size(), static_cast<size_t>(kRehearsal));
  EXPECT_TRUE(budget_json(scratch / "a")["runs"].contains("sr-ste+decay=auto@2:4"));
}

// Runs of different lengths end together: a longer one takes more steps in its turn.
TEST(Budget, TurnsAreInProportionToTheSteps) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = small_run("mlp");
  options.recipes = {"sr-ste"};
  options.patterns = {"2:4"};
  options.seeds = 1;
  std::vector<CompareEntry> entries = compare_entries(options);
  entries[0].steps = 10;
  entries[1].steps = 26;
  Turns turns(scratch / "a");
  std::atomic<int> stop{0};
  TrainerSetup setup;
  setup.planner = std::make_shared<Planner>(PlanMode::kSparse);
  setup.stop = &stop;
  int calls = 0;
  EXPECT_FALSE(train_in_turns(scratch / "a", options, entries, turns, setup,
                              [&](double) { stop = ++calls == 2; }));
  EXPECT_EQ(step_lines(scratch / "a" / "dense-seed1").size(), 5u);
  EXPECT_EQ(step_lines(scratch / "a" / "sr-ste-2of4-seed1").size(), 13u);
}

TEST(Budget, ADurationHasAUnitOrIsInSeconds) {
  EXPECT_EQ(parse_duration("90"), 90.0);
  EXPECT_EQ(parse_duration("300s"), 300.0);
  EXPECT_EQ(parse_duration("10m"), 600.0);
  EXPECT_EQ(parse_duration("1.5h"), 5400.0);
  for (const char* wrong : {"", "s", "0", "-3s", "3 s", "3min", "nan", "inf", "1e99h"}) {
    EXPECT_TRUE(contains(message_of([&] { parse_duration(wrong); }), "accepted is a time"))
        << wrong;
  }
}

}  // namespace
}  // namespace weft::test
