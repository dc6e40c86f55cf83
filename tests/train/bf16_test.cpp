// Runs in bf16: they learn, go on to the bit, and stay in bf16.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/core/bf16.h"
#include "weft/train/compare.h"
#include "weft/train/load_model.h"

namespace weft::test {
namespace {

RunOptions bf16_run(const std::string& model, const std::string& recipe,
                    const ScratchFolder& scratch) {
  RunOptions options = model == "gpt" ? text_run(scratch, recipe) : small_run(model, recipe);
  options.precision = "bf16";
  return options;
}

TEST(Bf16, EveryModelLearnsAsInFp32) {
  for (const std::string model : {"mlp", "cnn", "vit", "gpt"}) {
    std::map<std::string, std::vector<double>> losses;
    for (const char* precision : {"fp32", "bf16"}) {
      const ScratchFolder scratch;
      RunOptions options = bf16_run(model, "t-sr-ste", scratch);
      options.precision = precision;
      options.steps = 30;
      options.batch = 32;
      options.checkpoint_every = 0;
      Notes notes;
      Trainer trainer = Trainer::begin(scratch / "run", make_parts(options), listening(notes));
      trainer.advance(options.steps);
      const bool narrow = options.precision == "bf16";
      const Batch batch = trainer.source().test_batch(std::vector<int64_t>{0, 1});
      EXPECT_EQ(trainer.model().forward(batch.inputs).scalar_type(),
                narrow ? torch::kBFloat16 : torch::kFloat);
      for (const torch::Tensor& parameter : trainer.model().parameters()) {
        EXPECT_EQ(parameter.scalar_type(), torch::kFloat);
        EXPECT_EQ(parameter.grad().scalar_type(), torch::kFloat);
      }
      losses[precision] = notes.losses;
    }
    const auto is_bf16 = [](double loss) {
      return to_float(to_bf16(static_cast<float>(loss))) == static_cast<float>(loss);
    };
    EXPECT_FALSE(std::ranges::all_of(losses["bf16"], is_bf16)) << model << ": the loss is fp32";
    EXPECT_NEAR(losses["bf16"].front(), losses["fp32"].front(), 0.02) << model;
    EXPECT_NE(losses["bf16"].front(), losses["fp32"].front()) << model;
    EXPECT_LT(losses["bf16"].back(), 0.95 * losses["bf16"].front()) << model;
    EXPECT_NEAR(losses["bf16"].back(), losses["fp32"].back(), 0.1) << model;
  }
}

TEST(Bf16, EveryRecipeGoesOnBitForBit) {
  for (const std::string model : {"mlp", "cnn", "vit", "gpt"}) {
    for (const Recipe& recipe : recipes()) {
      const bool for_all = model == "mlp" || recipe.name == "t-sr-ste";
      if (!for_all) continue;
      const ScratchFolder scratch;
      const RunOptions options = bf16_run(model, recipe.name, scratch);
      const auto whole = scratch / "whole", pieces = scratch / "pieces";
      const std::string expected =
          finished_model(whole, Trainer::begin(whole, make_parts(options)));
      EXPECT_EQ(interrupted_model(pieces, options, {3, 6, 5}), expected)
          << model << " by " << recipe.name;
    }
  }
}

TEST(Bf16, ALoadedModelEvaluatesAsTheRunDid) {
  for (const std::string model : {"cnn", "gpt"}) {
    const ScratchFolder scratch;
    const RunOptions options = bf16_run(model, "s-ste", scratch);
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    trainer.advance(options.steps);
    const RunResult result = trainer.finish();
    RunParts parts = load_model(scratch / "run");
    const EvalReport again = evaluate(*parts.model, *parts.source, options.batch, 0);
    EXPECT_EQ(again.loss, result.eval.loss) << model;
    const RunParts network = load_network(scratch / "run", scratch / "run" / "model.safetensors",
                                          "", [](const std::string&) {});
    const EvalReport dense = evaluate(*network.model, *network.source, options.batch, 0);
    EXPECT_NEAR(dense.loss, result.eval.loss, 0.02) << model;
    for (const auto& [name, layer] : layers_of(*network.model)) {
      EXPECT_EQ(layer->settings().precision, Precision::kBf16) << model << ": " << name;
    }
  }
}

// A run is of one precision, and those from before there was a choice are fp32.
TEST(Bf16, ARunKeepsItsPrecision) {
  const ScratchFolder scratch;
  const auto folder = scratch / "run", old = scratch / "old";
  RunOptions options = small_run("mlp");
  { Trainer::begin(folder, make_parts(options)).advance(6); }
  options = resume_options(folder);
  options.precision = "bf16";
  Notes notes;
  EXPECT_TRUE(
      contains(message_of([&] { Trainer::resume(folder, make_parts(options), listening(notes)); }),
               "no checkpoint can be used"));
  EXPECT_TRUE(contains(notes.all, "refused")) << notes.all;
  std::string record = contents(folder / "run.json");
  const std::string line = "\"precision\": \"fp32\",";
  ASSERT_TRUE(contains(record, line)) << record;
  record.erase(record.find(line), line.size());
  std::filesystem::copy(folder, old);
  std::ofstream(old / "run.json") << record;
  EXPECT_EQ(finished_model(old, Trainer::resume(old, make_parts(resume_options(old)))),
            finished_model(folder, Trainer::resume(folder, make_parts(resume_options(folder)))));
}

// What may change when a run is resumed is not part of its name.
TEST(Bf16, TheNameOfARunTellsItsPrecisionAndNotItsSteps) {
  RunOptions options = small_run("mlp");
  const std::string wide = run_name(options, 7, std::nullopt);
  options.steps = 99;
  options.learning_rate = 1.0;
  options.data = "idx:elsewhere";
  EXPECT_EQ(run_name(options, 7, std::nullopt), wide);
  EXPECT_NE(run_name(options, 8, std::nullopt), wide);
  options.precision = "bf16";
  EXPECT_NE(run_name(options, 7, std::nullopt), wide);
}

TEST(Bf16, ComparisonsRunInIt) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = bf16_run("mlp", "s-ste", scratch);
  options.recipes = {"dense", "bi-mask", "lbc"};
  options.patterns = {"2:4"};
  const auto result = compare(scratch / "a", options, nullptr, [](double) {});
  ASSERT_TRUE(result);
  ASSERT_EQ(result->rows.size(), 3u);
  options.run.precision = "fp32";
  EXPECT_TRUE(contains(message_of([&] { compare(scratch / "a", options, nullptr, [](double) {}); }),
                       "has a run with precision bf16, not fp32"));
}

}  // namespace
}  // namespace weft::test
