// Steps of a run: gradients, clipping, accumulation, metrics, and runs that come to nothing.
#include "weft/train/trainer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <fstream>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/data/sample_order.h"
#include "weft/torch/tensor_file.h"

namespace weft::test {
namespace {

// A second model of the same seed takes the step by hand: w - rate · g · clip / |g|, where the norm
// is of the model's own parameters, and the scores of lbc are scaled with them.
TEST(Trainer, AStepTakesTheClippedGradients) {
  struct Norms : TrainerListener {
    void on_step(const StepReport& report) override { all.push_back(report.gradient_norm); }
    std::vector<double> all;
  };
  for (const std::string recipe : {"dense", "lbc"}) {
    for (const double clip : {0.05, 1e6, 0.0}) {
      RunOptions options = small_run("mlp", recipe);
      options.optimizer = "sgd";
      options.momentum = 0.0;
      options.weight_decay = 0.0;
      options.warmup = 0.0;
      options.learning_rate = 0.5;
      options.clip = clip;
      const RunParts second = make_parts(options);
      sparsify(*second.model, sparsify_config(second.options, std::nullopt, nullptr));
      std::vector<int64_t> samples(static_cast<size_t>(options.batch));
      SampleOrder(static_cast<uint64_t>(options.seed), second.source->train_samples())
          .fill(0, samples);
      const Batch batch = second.source->train_batch(samples, 0);
      torch::nn::functional::cross_entropy(second.model->forward(batch.inputs), batch.targets)
          .backward();
      double weights = 0.0, scores = 0.0;
      for (const auto& parameter : second.model->named_parameters()) {
        const double square =
            parameter.value().grad().to(torch::kDouble).square().sum().item<double>();
        (parameter.key().ends_with("scores") ? scores : weights) += square;
      }
      const double norm = std::sqrt(weights);
      EXPECT_GT(norm, 0.1) << "there is something to clip";
      EXPECT_GE(scores, recipe == "lbc" ? 1e-4 * weights : 0.0) << "and a difference to see";
      const double factor = clip > 0 && norm > clip ? clip / norm : 1.0;

      const ScratchFolder scratch;
      Norms norms;
      TrainerSetup setup;
      setup.listener = &norms;
      Trainer trainer = Trainer::begin(scratch / "run", make_parts(options), setup);
      trainer.advance(1);
      EXPECT_NEAR(norms.all.at(0), norm, 1e-5 * norm);
      const auto stepped = trainer.model().named_parameters();
      for (const auto& parameter : second.model->named_parameters()) {
        const torch::Tensor step = 0.5 * factor * parameter.value().grad();
        const torch::Tensor expected = parameter.value() - step;
        const double off = (stepped[parameter.key()] - expected).abs().max().item<double>();
        EXPECT_LE(off, 1e-4 * step.abs().max().item<double>() + 1e-7)
            << recipe << " clip " << clip << ": " << parameter.key();
      }
    }
  }
}

// One batch, or the same batch in parts: the same step, up to rounding.
TEST(Trainer, AccumulatesTheGradientOfTheWholeBatch) {
  std::vector<std::vector<double>> losses;
  for (const int64_t parts : {1, 2, 4}) {
    RunOptions options = small_run("mlp", "sr-ste");
    options.accumulate = parts;
    options.optimizer = "sgd";
    options.learning_rate = 0.05;
    const ScratchFolder scratch;
    Notes notes;
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options), listening(notes));
    trainer.advance(6);
    losses.push_back(notes.losses);
  }
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_NEAR(losses[1][i], losses[0][i], 1e-4);
    EXPECT_NEAR(losses[2][i], losses[0][i], 1e-4);
  }
}

TEST(Trainer, ANonFiniteLossEndsTheRunWithStepAndLayer) {
  const ScratchFolder scratch;
  RunOptions options = small_run("mlp", "dense");
  RunParts parts = make_parts(options);
  Trainer trainer = Trainer::begin(scratch / "run", parts);
  trainer.advance(3);
  {
    const torch::NoGradGuard no_grad;
    parts.model->named_parameters()["hidden1.weight"].fill_(3e38f);
  }
  for (const auto& [name, layer] : layers_of(*parts.model)) layer->weights_changed();
  const std::string message = message_of([&] { trainer.advance(1); });
  EXPECT_TRUE(contains(message, "step 4: the loss is ")) << message;
  EXPECT_TRUE(contains(message, "whose product is not finite is 'h")) << message;
}

TEST(Trainer, WeightsThatAreNotFiniteAreNoResult) {
  const ScratchFolder scratch;
  RunOptions options = small_run("mlp", "dense");
  options.steps = 1;
  options.learning_rate = 1e6;
  options.warmup = 0;
  options.depth = 9;
  Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
  trainer.advance(1);
  EXPECT_TRUE(contains(message_of([&] { trainer.finish(); }), "the loss of the evaluation is"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "run" / "model.safetensors"));
}

TEST(Trainer, MetricsHaveTheTelemetryOfEveryRecipe) {
  const ScratchFolder scratch;
  for (const Recipe& recipe : recipes()) {
    const RunOptions options = small_run("mlp", recipe.name);
    const auto folder = scratch / recipe.name;
    Trainer trainer = Trainer::begin(folder, make_parts(options));
    trainer.advance(options.steps);
    trainer.finish();
    std::ifstream stream(folder / "metrics.jsonl");
    std::string line;
    int64_t steps = 0, evaluations = 0;
    while (std::getline(stream, line)) {
      const Json entry = Json::parse(line, "metrics");
      if (entry.contains("eval_loss")) {
        ++evaluations;
        EXPECT_TRUE(entry.contains("eval_accuracy"));
        continue;
      }
      EXPECT_EQ(entry["step"], ++steps);
      for (const char* name : {"loss", "learning_rate", "step_ms", "flip_rate"}) {
        EXPECT_TRUE(entry[name].is_number()) << name;
      }
      for (const char* name : {"mask", "pack", "fwd", "bwd_x", "bwd_w", "forward", "step"}) {
        EXPECT_TRUE(entry["split_ms"][name].is_number()) << name;
      }
      auto parts = entry["split_ms"]["clip"].get<double>();
      for (const char* name : {"data", "forward", "backward", "step"}) {
        EXPECT_GT(entry["split_ms"][name].get<double>(), 0.0) << name;
        parts += entry["split_ms"][name].get<double>();
      }
      EXPECT_LE(parts, entry["step_ms"].get<double>() + 0.005) << "rounded to 0.001 each";
      EXPECT_EQ(entry["layers"].size(), recipe.name == "dense" ? 0u : 1u) << "hidden1";
      if (recipe.name == "dense") continue;
      const Json& layer = entry["layers"]["hidden1"];
      EXPECT_EQ(layer.contains("beta"), recipe.name == "s-ste");
      EXPECT_EQ(layer.contains("alive"), recipe.name == "lbc");
      EXPECT_EQ(layer.contains("retained"), steps % 3 == 0);
      EXPECT_EQ(layer.contains("cosine"), recipe.name == "bi-mask" && steps % 3 == 0) << line;
    }
    EXPECT_EQ(steps, options.steps);
    EXPECT_EQ(evaluations, 1);
  }
}

TEST(Trainer, AFolderWithARunIsNotOverwritten) {
  const ScratchFolder scratch;
  const RunOptions options = small_run("mlp", "dense");
  { Trainer::begin(scratch / "run", make_parts(options)); }
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(scratch / "run", make_parts(options)); }),
                       "has a run already"));
}

// A run that ends where a mask is due is evaluated and exported with the one that it trained.
TEST(Trainer, EndsOnAMaskThatItTrained) {
  for (const std::string recipe :
       {"transposable+mask_every=4", "bi-mask+mask_every=4", "sr-ste+order_every=4+order_end=1"}) {
    for (const int64_t steps : {8, 9}) {
      SCOPED_TRACE(fmt::format("{} {}", recipe, steps));
      const ScratchFolder scratch;
      RunOptions options = small_run("mlp", recipe);
      if (contains(recipe, "order_every")) options.pattern = "2:4x2";
      options.steps = steps;
      options.eval_every = 1;
      options.learning_rate = 0.02;
      RunParts parts = make_parts(options);
      Trainer trainer = Trainer::begin(scratch / "run", parts);
      trainer.advance(steps - 1);
      std::shared_ptr<LayerModule> layer;
      for (const auto& [name, one] : layers_of(*parts.model)) {
        if (name == "hidden1") layer = one;
      }
      const LayerState before = layer->state();
      trainer.advance(1);
      trainer.finish();
      const bool due_in_the_last = (steps - 1) % 4 == 0;
      EXPECT_EQ(layer->state().refreshed, steps - 1);
      if (!due_in_the_last) {
        EXPECT_EQ(layer->state().row_order, before.row_order);
        if (contains(recipe, "mask_every")) {
          EXPECT_EQ(layer->state().forward, before.forward);
          const torch::Tensor weight =
              read_tensors(scratch / "run" / "model.safetensors").at("hidden1.weight");
          for (int64_t r = 0; r < before.forward.rows(); ++r) {
            for (int64_t c = 0; c < before.forward.cols(); ++c) {
              ASSERT_EQ(weight[r][c].item<float>() != 0.0f, before.forward.at(r, c));
            }
          }
        }
      } else if (contains(recipe, "mask_every")) {
        EXPECT_NE(layer->state().forward, before.forward);
      }
    }
  }
}

TEST(Trainer, ARuleThatMatchesNoLayerIsNoted) {
  const ScratchFolder scratch;
  RunOptions options = small_run("mlp");
  options.rules = {"hidden=dense", "hidden1=dense"};  // the first matches a part of names only
  Notes notes;
  Trainer::begin(scratch / "run", make_parts(options), listening(notes));
  EXPECT_EQ(notes.all,
            "rule 'hidden' matches the whole name of no layer; the layers are hidden0, hidden1, "
            "head\n");
}

}  // namespace
}  // namespace weft::test
