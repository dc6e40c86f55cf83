// Runs on several ranks against the same run in one process.
#include "tests/cli/ranks.h"

#include <cmath>

namespace weft::test {
namespace {

class RanksLikeOne : public Ranks, public ::testing::WithParamInterface<const char*> {};

// Sums over ranks round differently in the last bit. AdamW makes steps of the learning rate from a
// gradient of 1e-9 as from one of 1, so that masks which are a tie to within rounding would differ.
std::vector<std::string> short_run(const std::string& recipe) {
  return {"--recipe", recipe, "--optimizer",       "sgd", "--sparse-ends", "--threads", "1",
          "--batch",  "32",   "--telemetry-every", "0"};
}

TEST_P(RanksLikeOne, LossesAndGradients) {
  const std::string recipe = GetParam();
  ASSERT_EQ(run(train("one", short_run(recipe))).code, 0);
  const std::vector<Json> one = step_lines("one");
  ASSERT_EQ(one.size(), 20u);
  for (const int size : {2, 4}) {
    const std::string name = fmt::format("of{}", size);
    run_all(size, train(name, short_run(recipe)));
    const std::vector<Json> several = step_lines(name);
    ASSERT_EQ(several.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_NEAR(several[i]["loss"].get<double>(), one[i]["loss"].get<double>(), 1e-4)
          << recipe << ", " << size << " ranks, step " << i + 1;
    }
    const double norm = one[0]["gradient_norm"].get<double>();
    EXPECT_NEAR(several[0]["gradient_norm"].get<double>(), norm, 1e-6 * norm) << recipe;
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, RanksLikeOne,
                         ::testing::Values("dense", "static", "t-sr-ste", "bi-mask", "lbc",
                                           "s-ste"));

TEST_F(Ranks, BatchNormalisationSeesTheBatchOfAllRanks) {
  const std::vector<std::string> cnn = {"--model", "cnn", "--optimizer", "sgd",
                                        "--width", "8",   "--recipe",    "static",
                                        "--batch", "16",  "--threads",   "1"};
  ASSERT_EQ(run(train("one", cnn)).code, 0);
  run_all(2, train("two", cnn));
  const std::vector<Json> one = step_lines("one"), two = step_lines("two");
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(two[i]["loss"].get<double>(), one[i]["loss"].get<double>(), 1e-4) << i;
  }
}

TEST_F(Ranks, RunsWithTheSameRanksHaveTheSameBits) {
  for (const char* name : {"a", "b"}) run_all(2, train(name, {"--plan", "auto"}, "24"));
  // The planner of rank 0 decided, by times; what it decided repeats the run.
  run_all(2, train("c", {"--plan", folder("a") + "/run.json"}, "24"));
  EXPECT_EQ(model("a"), model("c"));
}

TEST_F(Ranks, MicroBatchesAreSharedToo) {
  run_all(2, train("two", {"--accumulate", "2", "--recipe", "static", "--threads", "1"}));
  ASSERT_EQ(run(train("one", {"--accumulate", "2", "--recipe", "static", "--threads", "1"})).code,
            0);
  EXPECT_NEAR(step_lines("two")[19]["loss"].get<double>(),
              step_lines("one")[19]["loss"].get<double>(), 1e-4);
}

TEST_F(Ranks, MaskedGradientsTravelWithoutTheirZeros) {
  run_all(2, train("dense", {"--recipe", "dense"}));
  run_all(2, train("static", {"--recipe", "static", "--sparse-ends"}));
  const auto bytes = [&](const std::string& name) {
    return step_lines(name).back()["reduced_bytes"].get<int64_t>();
  };
  EXPECT_LT(bytes("static"), 0.52 * static_cast<double>(bytes("dense")));
  EXPECT_GT(bytes("static"), 0.48 * static_cast<double>(bytes("dense")));
}

TEST_F(Ranks, ARunGoesOnWithTheSameBitsAndWithOtherRanks) {
  for (const char* recipe : {"s-ste", "lbc"}) {
    const std::string whole = fmt::format("whole-{}", recipe),
                      stopped = fmt::format("stop-{}", recipe);
    run_all(2, train(whole, {"--recipe", recipe}, "300"));
    start(2, train(stopped, {"--recipe", recipe}, "300"));
    ASSERT_TRUE(wait_for_step(stopped, 12));
    ::kill(ranks_[1]->pid(), SIGTERM);  // one of them is told to stop: both do
    const std::vector<Outcome> outcomes = wait_all();
    EXPECT_EQ(outcomes[1].code, 128 + SIGTERM) << outcomes[1].err;
    EXPECT_TRUE(contains(outcomes[0].err, "as another rank was told to")) << outcomes[0].err;
    std::filesystem::copy(folder(stopped), folder(stopped + "-4"),
                          std::filesystem::copy_options::recursive);
    run_all(2, {"train", "--resume", folder(stopped)});
    EXPECT_EQ(model(whole), model(stopped)) << recipe;
    run_all(4, {"train", "--resume", folder(stopped + "-4")});
    EXPECT_EQ(step_lines(stopped + "-4").size(), 300u);
  }
}

TEST_F(Ranks, OtherRanksNeedNoFolderOfTheRun) {
  const std::string out = folder("away");
  run_all(2, train("away", {}));
  const Outcome record = run({"info", out + "/model.safetensors"});
  EXPECT_EQ(record.code, 0) << record.err;
  EXPECT_TRUE(contains(contents(out + "/run.json"), "\"ranks\": 2"));
  start(2, {"train", "--resume", out});
  for (const Outcome& outcome : wait_all()) EXPECT_EQ(outcome.code, 0) << outcome.err;
}

}  // namespace
}  // namespace weft::test
