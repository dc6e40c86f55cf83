// weft recipes and weft bench layer as their users meet them.
#include <gtest/gtest.h>

#include <map>

#include "tests/program.h"
#include "tests/support.h"

namespace weft::test {
namespace {

class TrainCommands : public ::testing::Test {
 protected:
  TrainCommands() { ::setenv("XDG_CACHE_HOME", (cache_ / "").c_str(), 1); }
  ScratchFolder cache_;
};

TEST_F(TrainCommands, RecipesAreListedWithTheirParts) {
  const Outcome outcome = run({"recipes", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::string, std::string> sparse;
  const Json list = outcome.json();
  for (const Json& recipe : list) {
    sparse[recipe["name"].get<std::string>()] = recipe["sparse_products"].get<std::string>();
  }
  EXPECT_EQ(sparse.size(), 9u);
  EXPECT_EQ(sparse["dense"], "none");
  EXPECT_EQ(sparse["sr-ste"], "fwd, bwd_x");
  EXPECT_EQ(sparse["s-ste"], "fwd, bwd_x, bwd_w");
  EXPECT_TRUE(contains(run({"recipes"}).out, "mask every 40 steps; dense for the last 0.167"));
}

TEST_F(TrainCommands, HelpNamesTheCommandsOfBothPrograms) {
  EXPECT_TRUE(contains(run({"--help"}).out, "recipes"));
  EXPECT_TRUE(contains(run({"bench", "--help"}).out, "layer"));
}

TEST_F(TrainCommands, BenchLayerHasTheSplitOfAStep) {
  if (!has_torch()) GTEST_SKIP() << "built without libtorch";
  const Outcome outcome =
      run({"bench", "layer", "--shape", "64x32x48", "--rounds", "1", "--plan", "sparse", "--recipe",
           "t-sr-ste", "--recipe", "lbc", "--recipe", "s-ste+gradient=mvue-two-draw", "--pattern",
           "2:4", "--pattern", "1:4", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json records = outcome.json();
  ASSERT_EQ(records.size(), 5u);  // two-draw is for 2:4 only
  EXPECT_EQ(records[0]["recipe"], "t-sr-ste");
  EXPECT_EQ(records[0]["plan"], "sparse/sparse/sparse");
  EXPECT_EQ(records[0]["tokens"], 64);
  for (const Json& record : records) {
    EXPECT_GT(record["dense_ms"].get<double>(), 0.0);
    EXPECT_GT(record["ratio"].get<double>(), 0.0);
    EXPECT_EQ(record["ratio_spread"].size(), 2u);
    double parts = 0.0;
    for (const char* part : {"mask_ms", "pack_ms", "fwd_ms", "bwd_x_ms", "bwd_w_ms"}) {
      EXPECT_GE(record[part].get<double>(), 0.0) << part;
      parts += record[part].get<double>();
    }
    EXPECT_LE(parts, 1.5 * record["sparse_ms"].get<double>());
  }
}

TEST_F(TrainCommands, WrongFlagsOfBenchLayerAreUsageErrors) {
  if (!has_torch()) GTEST_SKIP() << "built without libtorch";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"bench", "layer", "--recipe", "sste"}, "known are dense, ste"},
      {{"bench", "layer", "--recipe", "ste+backward=x"}, "accepted are same, bi-mask"},
      {{"bench", "layer", "--pattern", "5:4"}, "5:4"},
      {{"bench", "layer", "--plan", "fast"}, "auto, dense and sparse"},
      {{"bench", "layer", "--rounds", "0"}, "--rounds"},
      {{"bench", "layer", "--recipe", "dense+backward=bi-mask"}, "this one is dense"},
  };
  for (const auto& [arguments, part] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << part;
    EXPECT_TRUE(contains(outcome.err, part)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  }
}

TEST_F(TrainCommands, WithoutTorchItsCommandsSaySo) {
  if (has_torch()) GTEST_SKIP() << "built with libtorch";
  const Outcome outcome = run({"bench", "layer"});
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(contains(outcome.err, "needs libtorch")) << outcome.err;
}

}  // namespace
}  // namespace weft::test
