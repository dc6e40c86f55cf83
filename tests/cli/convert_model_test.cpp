// weft convert with the network of a run, recovery, and what follows: eval and fine-tuning.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/model_files.h"
#include "tests/program.h"
#include "tests/support.h"

namespace weft::test {
namespace {

// A cnn and a gpt of a second each, trained once for all tests.
class ConvertModel : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!has_torch()) return;
    scratch_ = new ScratchFolder;
    ::setenv("XDG_CACHE_HOME", (*scratch_ / "cache").c_str(), 1);
    train("cnn", {"--width", "8", "--steps", "60", "--train-images", "600", "--test-images", "200",
                  "--batch", "32"});
    std::string text;
    for (int i = 0; i < 400; ++i) text += "the quick brown fox jumps over the lazy dog. ";
    const std::string text_file = *scratch_ / "text.txt";
    std::ofstream(text_file) << text;
    train("gpt", {"--data", "text:" + text_file, "--width", "32", "--depth", "2", "--heads", "2",
                  "--context", "32", "--steps", "40", "--batch", "8"});
  }
  static void TearDownTestSuite() { delete scratch_; }
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << "built without libtorch";
  }

  static void train(const std::string& model, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"train", "--model",     model,    "--recipe", "dense",
                                          "--out", run_of(model), "--plan", "dense"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  static std::string run_of(const std::string& model) { return *scratch_ / model; }
  static std::string weights_of(const std::string& model) {
    return run_of(model) + "/model.safetensors";
  }
  static Outcome convert(const std::string& model, const std::string& out,
                         const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"convert",     weights_of(model), out,         "--json",
                                          "--model-dir", run_of(model),     "--samples", "128"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  static double accuracy(const std::string& model, const std::string& weights) {
    const Outcome outcome = run({"eval", run_of(model), "--weights", weights, "--json"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.json()["eval_accuracy"].get<double>();
  }

  static ScratchFolder* scratch_;
};
ScratchFolder* ConvertModel::scratch_ = nullptr;

TEST_F(ConvertModel, AdapruneIsBelowItsStartAndTheFileChecks) {
  for (const std::string model : {"cnn", "gpt"}) {
    const ScratchFolder folder;
    const std::string out = folder / "out.safetensors";
    const Outcome outcome = convert(model, out, {"--pattern", "1:4", "--method", "adaprune"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const Json report = outcome.json();
    ASSERT_GT(report["layers"].size(), 0u);
    for (const Json& layer : report["layers"]) {
      EXPECT_LT(layer["error_after"].get<double>(), layer["error_before"].get<double>());
    }
    EXPECT_EQ(run({"check", out}).code, 0);
  }
}

// As in training: the ends and embeddings stay, and the list says why.
TEST_F(ConvertModel, TheEndsStayDenseUnlessAskedFor) {
  const ScratchFolder folder;
  const std::string out = folder / "out.safetensors";
  const auto reason_of = [&](const std::string& model, const std::string& tensor,
                             const std::vector<std::string>& more) -> std::string {
    std::vector<std::string> arguments = {"--pattern", "2:4", "--dry-run"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Json report = convert(model, out, arguments).json();
    for (const Json& skipped : report["skipped"]) {
      if (skipped["name"] == tensor) return skipped["reason"].get<std::string>();
    }
    return "";
  };
  EXPECT_TRUE(contains(reason_of("cnn", "stem.weight", {}), "first layer"));
  EXPECT_TRUE(contains(reason_of("cnn", "head.weight", {}), "last layer"));
  EXPECT_EQ(reason_of("cnn", "head.weight", {"--sparse-ends"}), "");
  EXPECT_TRUE(contains(reason_of("gpt", "tokens.weight", {"--sparse-ends"}), "embedding"));
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(ConvertModel, BatchNormalisationIsEstimatedAnewUnlessKept) {
  const ScratchFolder folder;
  const std::string anew = folder / "anew.safetensors", kept = folder / "kept.safetensors";
  const std::string mean = "norm.running_mean", variance = "stage1_0.norm1.running_var";
  ASSERT_EQ(convert("cnn", anew, {"--pattern", "1:4", "--method", "adaprune"}).code, 0);
  ASSERT_EQ(convert("cnn", kept, {"--pattern", "1:4", "--method", "adaprune", "--keep-norms"}).code,
            0);
  EXPECT_NE(floats_of(anew, variance), floats_of(weights_of("cnn"), variance));
  EXPECT_EQ(floats_of(kept, variance), floats_of(weights_of("cnn"), variance));
  // The stem stays dense, and so does what is behind it; the mean behind a converted layer moves.
  EXPECT_EQ(floats_of(kept, mean), floats_of(weights_of("cnn"), mean));
  EXPECT_NE(floats_of(kept, "stage1_0.norm1.running_mean"),
            floats_of(weights_of("cnn"), "stage1_0.norm1.running_mean"));
  EXPECT_EQ(floats_of(anew, "stage1_0.conv1.weight"), floats_of(kept, "stage1_0.conv1.weight"));
}

TEST_F(ConvertModel, RepeatsOnAnyNumberOfThreads) {
  const ScratchFolder folder;
  const std::string one = folder / "1.safetensors", two = folder / "2.safetensors";
  const std::vector<std::string> flags = {"--pattern", "2:4",          "--method",
                                          "adaprune",  "--keep-norms", "--threads"};
  auto with = [&](const std::string& threads) {
    std::vector<std::string> all = flags;
    all.push_back(threads);
    return all;
  };
  ASSERT_EQ(convert("cnn", one, with("1")).code, 0);
  ASSERT_EQ(convert("cnn", two, with("2")).code, 0);
  EXPECT_EQ(contents(one), contents(two));
}

TEST_F(ConvertModel, RecoveryHasEveryStepAndLeavesTheRunAlone) {
  const std::string before = contents(weights_of("cnn"));
  const Outcome outcome =
      run({"recovery", run_of("cnn"), "--pattern", "1:4", "--samples", "128", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json report = outcome.json();
  std::vector<std::string> steps;
  for (const Json& rung : report["rungs"]) steps.push_back(rung["step"].get<std::string>());
  EXPECT_EQ(steps, (std::vector<std::string>{"magnitude", "absorption", "adaprune", "+ norms",
                                             "wanda", "sparsegpt"}));
  const Json &shot = report["rungs"][0], &solved = report["rungs"][2], &normed = report["rungs"][3];
  for (size_t i = 0; i < shot["errors"].size(); ++i) {
    EXPECT_LT(solved["errors"][i].get<double>(), shot["errors"][i].get<double>());
  }
  EXPECT_EQ(normed["errors"], solved["errors"]);
  EXPECT_NE(normed["eval_loss"].get<double>(), solved["eval_loss"].get<double>());
  EXPECT_EQ(contents(weights_of("cnn")), before);
}

// The last rung is what convert writes on the same support: the same network, evaluated from the file.
TEST_F(ConvertModel, WhatIsWrittenIsWhatRecoveryEvaluates) {
  const ScratchFolder folder;
  const std::string out = folder / "out.safetensors";
  const auto converted =
      convert("cnn", out, {"--pattern", "1:4", "--method", "adaprune", "--support", "magnitude"});
  ASSERT_EQ(converted.code, 0) << converted.err;
  const Json report =
      run({"recovery", run_of("cnn"), "--pattern", "1:4", "--samples", "128", "--json"}).json();
  EXPECT_DOUBLE_EQ(accuracy("cnn", out), report["rungs"][3]["eval_accuracy"].get<double>());
}

TEST_F(ConvertModel, FineTuningKeepsTheZeros) {
  const ScratchFolder folder;
  const std::string sparse = folder / "sparse.safetensors", tuned = folder / "tuned";
  ASSERT_EQ(convert("cnn", sparse, {"--pattern", "1:4", "--method", "adaprune"}).code, 0);
  const Outcome outcome =
      run({"train",  "--model",       "cnn",   "--width", "8",       "--recipe", "static",
           "--init", sparse,          "--out", tuned,     "--steps", "10",       "--train-images",
           "600",    "--test-images", "200",   "--batch", "32",      "--plan",   "sparse"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const std::string model = tuned + "/model.safetensors", name = "stage2_0.conv2.weight";
  const std::vector<float> before = floats_of(sparse, name), after = floats_of(model, name);
  EXPECT_NE(before, after);
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] != 0.0F) continue;
    ASSERT_EQ(after[i], 0.0F) << i;
  }
  EXPECT_EQ(run({"check", model}).code, 0);
}

TEST_F(ConvertModel, RefusesWhatDoesNotFit) {
  const ScratchFolder folder;
  const std::string out = folder / "out.safetensors";
  const auto refused = [&](const std::vector<std::string>& arguments, int code,
                           const std::vector<std::string>& parts) {
    expect_one_line(run(arguments), code, parts);
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  refused({"convert", weights_of("gpt"), out, "--pattern", "2:4", "--method", "wanda",
           "--model-dir", run_of("cnn")},
          1, {"model.safetensors", "stem.weight"});
  refused({"convert", weights_of("cnn"), out, "--pattern", "2:4", "--method", "wanda",
           "--model-dir", folder / "none"},
          1, {"none"});
  // 16 images see the last convolutions at 16 * 4 * 4 positions at most.
  refused({"convert", weights_of("cnn"), out, "--pattern", "3:4", "--method", "adaprune",
           "--model-dir", run_of("cnn"), "--samples", "1"},
          1, {"weight", "samples"});
  refused({"convert", weights_of("cnn"), out, "--pattern", "2:4", "--keep-norms"}, 2,
          {"--model-dir"});
  expect_one_line(run({"eval", run_of("cnn"), "--weights", weights_of("gpt")}), 1, {"stem.weight"});
  expect_one_line(run({"recovery", folder / "none"}), 1, {"none"});
  // Two layers, and both are ends.
  train("mlp", {"--width", "16", "--depth", "1", "--steps", "2", "--train-images", "64",
                "--test-images", "16", "--batch", "16"});
  expect_one_line(run({"recovery", run_of("mlp")}), 2, {"no layer to convert", "--sparse-ends"});
}

}  // namespace
}  // namespace weft::test
