// weft recipes, and the flags of what needs libtorch, as their users meet them.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <tuple>

#include "tests/program.h"
#include "tests/support.h"

namespace weft::test {
namespace {

class TrainCommands : public ::testing::Test {
 protected:
  TrainCommands() { ::setenv("XDG_CACHE_HOME", (cache_ / "").c_str(), 1); }
  ScratchFolder cache_, scratch_;
};

TEST_F(TrainCommands, RecipesAreListedWithTheirParts) {
  const Outcome outcome = run({"recipes", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::map<std::string, std::string> sparse;
  const Json list = outcome.json();
  for (const Json& recipe : list) {
    sparse[recipe["name"].get<std::string>()] = recipe["sparse_products"].get<std::string>();
  }
  EXPECT_EQ(sparse.size(), 9u + 8u) << "weft's, and those of papers";
  EXPECT_EQ(sparse["t-sr-ste@paper"], "fwd, bwd_x, bwd_w");
  EXPECT_EQ(sparse["dense"], "none");
  EXPECT_EQ(sparse["sr-ste"], "fwd, bwd_x");
  EXPECT_EQ(sparse["s-ste"], "fwd, bwd_x, bwd_w");
  EXPECT_TRUE(contains(run({"recipes"}).out, "\nt-sr-ste@paper"));
  EXPECT_TRUE(contains(run({"recipes", "--wide"}).out,
                       "mask every step (groups of 8: 16, 16: 21, 32: 45); dense for the last"));
  EXPECT_TRUE(
      contains(run({"recipes", "--wide"}).out, "solver=exact                   1   16   21   45"));
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
      EXPECT_GT(record[part].get<double>(), 0.0) << part << " of " << record["recipe"].dump();
      parts += record[part].get<double>();
    }
    EXPECT_LE(parts, 1.5 * record["sparse_ms"].get<double>());
  }
}

// lbc is slower while it removes subsets: its figure is the mean over its phase, with all of it.
TEST_F(TrainCommands, BenchLayerTimesAllOfLbc) {
  if (!has_torch()) GTEST_SKIP() << "built without libtorch";
  const std::vector<std::string> command = {"bench",    "layer", "--shape",  "64x64x64",
                                            "--rounds", "1",     "--plan",   "sparse",
                                            "--recipe", "lbc",   "--recipe", "lbc+removal_end=0.8",
                                            "--recipe", "ste"};
  std::vector<std::string> as_json = command;
  as_json.push_back("--json");
  const Outcome outcome = run(as_json);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json records = outcome.json();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[2]["phases"].size(), 1u);
  for (const size_t i : {0u, 1u}) {
    double removal = 0.0, share = 0.0, mean = 0.0, before = 1.01;
    for (const Json& phase : records[i]["phases"]) {
      share += phase["share"].get<double>();
      mean += phase["share"].get<double>() * phase["step_ms"].get<double>();
      EXPECT_LE(phase["density"].get<double>(), before) << "weights are only removed";
      before = phase["density"].get<double>();
      if (phase["removed"].get<double>() >= 1.0) continue;
      removal += phase["share"].get<double>();
      EXPECT_GT(phase["density"].get<double>(), 0.5);
    }
    EXPECT_NEAR(share, 1.0, 1e-9);
    EXPECT_NEAR(removal, i == 0 ? 0.5 : 0.8, 1e-9) << "of a run";
    EXPECT_DOUBLE_EQ(before, 0.5) << "after the removal";
    // On a busy machine there are more, and both are medians.
    const double tolerance = records[i]["rounds"] == 1 ? 1e-6 : 0.9;
    EXPECT_NEAR(records[i]["sparse_ms"].get<double>(), mean, tolerance * mean);
  }
  const Outcome table = run(command);
  EXPECT_TRUE(contains(table.out, "mean over the sparse phase, with the update of scores"))
      << table.out;
}

// With libtorch or without: it is not even loaded.
TEST_F(TrainCommands, WrongUsageIsOneLineAndLeavesNothing) {
  const std::string bad = scratch_ / "bad.toml", rule = scratch_ / "rule.toml",
                    out = scratch_ / "x";
  std::ofstream(bad) << "stps = 3\n";
  std::ofstream(rule) << "rule = \"a=ste\"\n";
  const std::vector<std::tuple<std::vector<std::string>, int, std::string>> cases = {
      {{"train"}, 2, "--out DIR is needed"},
      {{"train", "--out", out, "--resume", out}, 2, "excludes"},
      {{"train", "--resume", out, "--seed", "5"},
       2,
       "--seed cannot be used with --resume: accepted are --data, --teacher, --steps, --epochs, "
       "--learning-rate"},
      {{"train", "--resume", "auto"}, 2, "--out DIR is needed"},
      {{"compare", "--out", out, "--metrics-every", "5"}, 2, "--metrics-every"},
      {{"compare", "--out", out, "--budget", "3 days"}, 2, "accepted is a time above 0"},
      {{"compare", "--out", out, "--budget", "9s", "--steps", "5"}, 2, "--budget excludes --steps"},
      {{"train", "--out", out, "--teacher-share", "1"}, 2, "no effect without a teacher"},
      {{"train", "--out", out, "--recipe", "magic"}, 2, "magic"},
      {{"train", "--out", out, "--steps", "0"}, 2, "--steps"},
      {{"train", "--out", out, "--precision", "fp16"}, 2, "'fp16': accepted are fp32, bf16"},
      {{"train", "--out", out, "--config", bad}, 1, "did you mean 'steps'?"},
      {{"train", "--out", out, "--data", "text"}, 2, "model cnn needs images"},
      {{"train", "--out", out, "--accumulate", "3"}, 2, "micro-batches"},
      {{"train", "--out", out, "--rule", "(=dense"}, 2, "not a regular expression"},
      {{"compare"}, 2, "--out is required"},
      {{"compare", "--out", out, "--config", rule},
       1,
       "rule.toml:1: key 'rule' is not accepted by this command"},
      {{"compare", "--out", out, "--recipes", "ste,magic"}, 2, "magic"},
      {{"compare", "--out", out, "--recipes", "ste,s-ste+gradient=mvue-two-draw@2:4@5:4"},
       2,
       "5:4"},
      {{"compare", "--out", out, "--recipes", "ste,s-ste+gradient=mvue-two-draw@1:4"},
       2,
       "the two-draw sampler is for 2:4"},
      {{"eval"}, 2, "run is required"},
      {{"eval", out, "--data", "photos"}, 2, "photos"},
      {{"recovery", out, "--pattern", "5:4"}, 2, "5:4"},
      {{"recovery", out, "--data", "photos"}, 2, "photos"},
      {{"bench", "layer", "--recipe", "sste"}, 2, "known are dense, ste"},
      {{"bench", "layer", "--recipe", "ste+backward=x"}, 2, "accepted are same, bi-mask"},
      {{"bench", "layer", "--recipe", "dense+backward=bi-mask"}, 2, "this one is dense"},
      {{"bench", "layer", "--pattern", "5:4"}, 2, "5:4"},
      {{"bench", "layer", "--plan", "fast"}, 2, "auto, dense and sparse"},
      {{"bench", "layer", "--rounds", "0"}, 2, "--rounds"},
      {{"bench", "step", "--tokens", "100", "--context", "64"},
       2,
       "not a multiple of the sequence length"},
      {{"bench", "step", "--model", "vgg"}, 2, "accepted are block and resnet18"},
      {{"bench", "step", "--width", "100", "--heads", "3"}, 2, "is not a multiple of 3 heads"},
  };
  for (const auto& [arguments, code, part] : cases) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, code) << part;
    EXPECT_TRUE(contains(outcome.err, part)) << outcome.err;
    EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
    EXPECT_FALSE(std::filesystem::exists(out)) << part;
  }
}

TEST_F(TrainCommands, HelpShowsFlagsDefaultsAndExamples) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"train"}, {"compare"}, {"eval"}, {"recovery"}, {"bench", "layer"}, {"bench", "step"}}) {
    std::vector<std::string> words = command;
    words.push_back("--help");
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "--threads")) << outcome.out;
    EXPECT_TRUE(contains(outcome.out, "Examples:\n  weft " + command.front())) << outcome.out;
  }
  EXPECT_TRUE(contains(run({"train", "--help"}).out, "(default: 2:4)"));
  EXPECT_TRUE(contains(run({"bench", "step", "--help"}).out, "1:8x2"));
}

TEST_F(TrainCommands, WithoutTorchItsCommandsSaySo) {
  if (has_torch()) GTEST_SKIP() << "built with libtorch";
  const std::string in = scratch_ / "in.safetensors", out = scratch_ / "out.safetensors";
  ASSERT_EQ(run({"synth", in, "--width", "64", "--layers", "1"}).code, 0);
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"bench", "layer"}, {"convert", in, out, "--pattern", "2:4", "--model-dir", "x"}}) {
    const Outcome outcome = run(words);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_TRUE(contains(outcome.err, "needs libtorch")) << outcome.err;
  }
}

}  // namespace
}  // namespace weft::test
