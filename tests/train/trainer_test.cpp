// The trainer: models, runs that resume to the bit, what is exported, comparisons.
#include "weft/train/trainer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <csignal>
#include <fstream>
#include <functional>

#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/bf16.h"
#include "weft/data/checksum.h"
#include "weft/data/sample_order.h"
#include "weft/decode/gpt_decoder.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"
#include "weft/pack/packed_file.h"
#include "weft/run/run_folder.h"
#include "weft/torch/linear.h"
#include "weft/train/compare.h"
#include "weft/train/export_model.h"
#include "weft/train/load_model.h"
#include "weft/train/optimizer.h"
#include "weft/train/run_setup.h"
#include "weft/train/tensor_file.h"

namespace weft::test {
namespace {

// Small, with products of all kinds, and no second spent on planning.
RunOptions small_run(const std::string& model, const std::string& recipe = "s-ste") {
  RunOptions options;
  options.model = model;
  options.recipe = recipe;
  options.width = model == "cnn" ? 8 : 16;
  options.depth = model == "mlp" ? 2 : 1;
  options.heads = 2;
  options.context = 12;
  options.patch = 7;
  options.batch = 8;
  options.steps = 12;
  options.learning_rate = 2e-3;
  options.train_images = 64;
  options.test_images = 20;
  options.checkpoint_every = 4;
  options.telemetry_every = 3;
  options.plan = "sparse";
  options.threads = 2;
  return options;
}

struct Notes : TrainerListener {
  void on_note(const std::string& note) override { all += note + "\n"; }
  void on_step(const StepReport& report) override { losses.push_back(report.loss); }
  std::string all;
  std::vector<double> losses;
};

TrainerSetup listening(Notes& notes) {
  TrainerSetup setup;
  setup.listener = &notes;
  return setup;
}

RunOptions text_run(const ScratchFolder& scratch, const std::string& recipe) {
  std::ofstream text(scratch / "text");
  for (int i = 0; i < 200; ++i) text << "line " << i * 7 % 31 << " of a text\n";
  RunOptions options = small_run("gpt", recipe);
  options.data = "text:" + (scratch / "text").string();
  return options;
}

// ─── models ───

TEST(Models, GiveScoresOfEveryClassAndLearn) {
  for (const std::string model : {"mlp", "cnn", "vit"}) {
    const RunParts parts = make_parts(small_run(model, "dense"));
    const std::vector<int64_t> samples = {0, 1, 2};
    const Batch batch = parts.source->train_batch(samples, 0);
    EXPECT_EQ(parts.model->forward(batch.inputs).sizes(), (std::vector<int64_t>{3, 16})) << model;
    RunOptions options = small_run(model, "dense");
    options.steps = 60;
    options.batch = 32;
    options.checkpoint_every = 0;
    const ScratchFolder scratch;
    Notes notes;
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options), listening(notes));
    trainer.advance(60);
    EXPECT_LT(notes.losses.back(), 0.9 * notes.losses.front()) << model;
  }
}

TEST(Models, SizesThatDoNotGoTogetherAreRefused) {
  RunOptions options = small_run("vit");
  options.patch = 5;
  EXPECT_TRUE(contains(message_of([&] { make_parts(options); }), "patches of 5x5"));
  options = small_run("vit");
  options.heads = 3;
  EXPECT_TRUE(contains(message_of([&] { make_parts(options); }), "3 heads"));
}

TEST(Models, TheDecoderReadsWhatTheTrainerWrites) {
  for (const std::string recipe : {"dense", "sr-ste", "s-ste"}) {
    const ScratchFolder scratch;
    RunOptions options = text_run(scratch, recipe);
    options.exports = "packed";
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    trainer.advance(options.steps);
    trainer.finish();
    const auto packed = scratch / "run" / "packed.safetensors";
    EXPECT_EQ(std::filesystem::exists(packed), recipe != "dense");
    const Checkpoint checkpoint =
        Checkpoint::open(recipe == "dense" ? scratch / "run" / "model.safetensors" : packed);
    GptDecoder decoder(checkpoint, options.heads);
    const std::string text = "line 7 of";
    const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
    const auto logits = decoder.take({bytes, text.size()});
    const torch::NoGradGuard no_grad;
    torch::Tensor x = torch::empty({1, static_cast<int64_t>(text.size())}, torch::kLong);
    for (size_t i = 0; i < text.size(); ++i) x.data_ptr<int64_t>()[i] = bytes[i];
    const torch::Tensor expected = trainer.model().forward(x)[0][-1];
    for (int64_t i = 0; i < 256; ++i) {
      EXPECT_NEAR(logits[static_cast<size_t>(i)], expected[i].item<float>(), 1e-4) << recipe;
    }
  }
}

// ─── steps ───

TEST(LearningRate, RisesThenFallsAsACosine) {
  RunOptions options;
  options.steps = 100;
  options.learning_rate = 1.0;
  options.warmup = 0.1;
  options.final_rate = 0.2;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0), 0.1);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 9), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 10), 1.0);
  EXPECT_NEAR(learning_rate_at(options, 99), 0.2, 1e-12);
  for (int64_t step = 10; step < 99; ++step) {
    EXPECT_GE(learning_rate_at(options, step), learning_rate_at(options, step + 1));
  }
  options.warmup = 0.0;
  options.steps = 1;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0), 1.0);
}

TEST(Optimizer, PullsAtMatricesOnly) {
  RunParts parts = make_parts(small_run("cnn", "dense"));
  const auto optimizer = make_optimizer(*parts.model, parts.options);
  ASSERT_EQ(optimizer->param_groups().size(), 2u);
  for (const torch::Tensor& one : optimizer->param_groups()[0].params()) EXPECT_GE(one.dim(), 2);
  for (const torch::Tensor& one : optimizer->param_groups()[1].params()) EXPECT_EQ(one.dim(), 1);
}

TEST(Optimizer, DoesNotPullAtPositions) {
  const ScratchFolder scratch;
  for (const RunOptions& options : {text_run(scratch, "lbc"), small_run("vit", "lbc")}) {
    RunParts parts = make_parts(options);
    sparsify(*parts.model, sparsify_config(parts.options, std::nullopt, nullptr));
    const auto optimizer = make_optimizer(*parts.model, parts.options);
    std::set<std::string> pulled;
    for (const auto& parameter : parts.model->named_parameters()) {
      for (const torch::Tensor& one : optimizer->param_groups()[0].params()) {
        if (one.is_same(parameter.value())) pulled.insert(parameter.key());
      }
    }
    EXPECT_FALSE(pulled.contains("positions.weight")) << options.model;
    EXPECT_EQ(pulled.contains("tokens.weight"), options.model == "gpt");
    EXPECT_TRUE(pulled.contains("head.weight"));
    for (const std::string& name : pulled) EXPECT_FALSE(contains(name, "scores")) << name;
  }
}

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
  EXPECT_TRUE(contains(message, "whose product is not finite is h")) << message;
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

TEST(Evaluate, CountsEverySampleOnce) {
  RunParts parts = make_parts(small_run("cnn", "dense"));
  const EvalReport whole = evaluate(*parts.model, *parts.source, 20, 0);
  const EvalReport pieces = evaluate(*parts.model, *parts.source, 7, 0);
  EXPECT_EQ(whole.samples, 20);
  EXPECT_EQ(pieces.samples, 20);
  EXPECT_NEAR(whole.loss, pieces.loss, 1e-5);
  EXPECT_EQ(whole.accuracy, pieces.accuracy);
  EXPECT_EQ(evaluate(*parts.model, *parts.source, 8, 5).samples, 5);
  EXPECT_TRUE(parts.model->is_training()) << "as it was";
}

// Loss of these test samples, one by one.
double loss_of_samples(Model& model, const BatchSource& source, const std::vector<int64_t>& all) {
  const torch::NoGradGuard no_grad;
  model.eval();
  double sum = 0.0;
  for (const int64_t sample : all) {
    const Batch one = source.test_batch(std::vector<int64_t>{sample});
    sum += torch::nn::functional::cross_entropy(model.forward(one.inputs).flatten(0, -2),
                                                one.targets.flatten())
               .item<double>();
  }
  model.train();
  return sum / static_cast<double>(all.size());
}

TEST(Evaluate, SpreadsItsSamplesOverAll) {
  RunParts parts = make_parts(small_run("cnn", "dense"));  // 20 test images
  EXPECT_NEAR(evaluate(*parts.model, *parts.source, 3, 5).loss,
              loss_of_samples(*parts.model, *parts.source, {0, 4, 8, 12, 16}), 1e-5);
  EXPECT_NEAR(evaluate(*parts.model, *parts.source, 8, 3).loss,
              loss_of_samples(*parts.model, *parts.source, {0, 6, 13}), 1e-5);
}

TEST(Evaluate, TakesASensibleNumberByDefault) {
  RunOptions options;
  EXPECT_EQ(options.resolved().eval_samples, 10000) << "images: all of most test sets";
  options.model = "gpt";
  EXPECT_EQ(options.resolved().eval_samples, 1024) << "windows of 128 bytes";
  options.context = 1024;
  EXPECT_EQ(options.resolved().eval_samples, 128);
  options.context = 1 << 20;
  EXPECT_EQ(options.resolved().eval_samples, 1);
  options.eval_samples = 0;
  EXPECT_EQ(options.resolved().eval_samples, 0) << "all";
}

TEST(Evaluate, SaysHowFarItIsAndStops) {
  RunParts parts = make_parts(small_run("mlp", "dense"));
  std::vector<int64_t> done;
  std::atomic<int> stop{0};
  EvalOptions options{6, 0, &stop, [&](int64_t now, int64_t all) {
                        EXPECT_EQ(all, 20);
                        done.push_back(now);
                      }};
  EXPECT_TRUE(evaluate(*parts.model, *parts.source, options));
  EXPECT_EQ(done, (std::vector<int64_t>{0, 6, 12, 18}));
  done.clear();
  options.progress = [&](int64_t now, int64_t) {
    done.push_back(now);
    if (now == 6) stop = 1;
  };
  EXPECT_FALSE(evaluate(*parts.model, *parts.source, options));
  EXPECT_EQ(done, (std::vector<int64_t>{0, 6}));
  EXPECT_TRUE(parts.model->is_training()) << "as it was";
}

// ─── flips ───

std::string finished_model(const std::filesystem::path& folder, Trainer trainer) {
  trainer.advance(trainer.options().steps);
  trainer.finish();
  return contents(folder / "model.safetensors");
}

// Begins, is dropped after some steps without a word, and goes on until the end.
std::string interrupted_model(const std::filesystem::path& folder, const RunOptions& options,
                              const std::vector<int64_t>& interruptions) {
  { Trainer::begin(folder, make_parts(options)).advance(interruptions[0]); }
  for (size_t i = 1; i < interruptions.size(); ++i) {
    Trainer::resume(folder, make_parts(resume_options(folder))).advance(interruptions[i]);
  }
  return finished_model(folder, Trainer::resume(folder, make_parts(resume_options(folder))));
}

using Weights = std::map<std::string, torch::Tensor>;

// Whether a mask keeps a weight: the `keep` largest |w| of every four inputs, one row after the
// other.
std::vector<bool> top_n(const torch::Tensor& weight, int keep) {
  const torch::Tensor flat = weight.detach().abs().reshape({-1, 4}).contiguous();
  std::vector<bool> kept;
  for (int64_t group = 0; group < flat.size(0); ++group) {
    const float* w = flat.data_ptr<float>() + 4 * group;
    for (int i = 0; i < 4; ++i) {
      int larger = 0;
      for (int j = 0; j < 4; ++j) larger += w[j] > w[i];
      kept.push_back(larger < keep);
    }
  }
  return kept;
}

// The best of the masks with two of each row and column, tile by tile.
std::vector<bool> transposable_2of4(const torch::Tensor& weight) {
  std::vector<int> masks;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    bool right = true;
    for (int i = 0; i < 4 && right; ++i) {
      int row = 0, col = 0;
      for (int j = 0; j < 4; ++j) {
        row += bits >> (4 * i + j) & 1;
        col += bits >> (4 * j + i) & 1;
      }
      right = row == 2 && col == 2;
    }
    if (right) masks.push_back(bits);
  }
  EXPECT_EQ(masks.size(), 90u);
  const torch::Tensor w = weight.detach().abs().to(torch::kDouble).contiguous();
  const int64_t cols = w.size(1);
  std::vector<bool> kept(static_cast<size_t>(w.numel()));
  for (int64_t row = 0; row < w.size(0); row += 4) {
    for (int64_t col = 0; col < cols; col += 4) {
      double best = -1.0;
      int chosen = 0;
      for (const int bits : masks) {
        double sum = 0.0;
        for (int i = 0; i < 16; ++i) {
          if (bits >> i & 1) sum += w.data_ptr<double>()[(row + i / 4) * cols + col + i % 4];
        }
        if (sum > best) best = sum, chosen = bits;
      }
      for (int i = 0; i < 16; ++i) {
        kept[static_cast<size_t>((row + i / 4) * cols + col + i % 4)] = chosen >> i & 1;
      }
    }
  }
  return kept;
}

using MaskOf = std::function<std::vector<bool>(const std::string& layer, const torch::Tensor&)>;

// Bits that differ per weight, from one of these weights to the other.
double flips_between(const Weights& before, const Weights& after,
                     const std::vector<std::string>& layers, const MaskOf& mask_of) {
  int64_t changed = 0, weights = 0;
  for (const std::string& layer : layers) {
    const std::vector<bool> old_mask = mask_of(layer, before.at(layer + ".weight"));
    const std::vector<bool> new_mask = mask_of(layer, after.at(layer + ".weight"));
    for (size_t i = 0; i < old_mask.size(); ++i) changed += old_mask[i] != new_mask[i];
    weights += static_cast<int64_t>(old_mask.size());
  }
  return static_cast<double>(changed) / static_cast<double>(weights);
}

Weights weights_now(Model& model) {
  Weights all;
  for (const auto& each : model.named_parameters()) all[each.key()] = each.value().detach().clone();
  return all;
}

std::vector<Json> step_lines(const std::filesystem::path& folder) {
  std::vector<Json> lines;
  std::ifstream stream(folder / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);) {
    const Json entry = Json::parse(line, "metrics");
    if (entry.contains("loss")) lines.push_back(entry);
  }
  return lines;
}

// Every kind of mask, at every step, against the count of this test, on the layers that a sparse
// run has: block 0's qkv is one of them, the embedding is no layer, the head is the last one.
TEST(DenseFlips, AreThoseThatASparseRunWouldCount) {
  const std::vector<std::string> blocks = {"blocks.0.attention.qkv", "blocks.0.attention.proj",
                                           "blocks.0.fc1", "blocks.0.fc2"};
  const MaskOf two_of_four = [](const std::string&, const torch::Tensor& w) { return top_n(w, 2); };
  const MaskOf one_of_four = [](const std::string&, const torch::Tensor& w) { return top_n(w, 1); };
  const MaskOf tiles = [](const std::string&, const torch::Tensor& w) {
    return transposable_2of4(w);
  };
  const MaskOf by_rule = [](const std::string& layer, const torch::Tensor& w) {
    return top_n(w, layer.ends_with("fc1") ? 1 : 2);
  };
  struct Case {
    std::string counted;
    MaskOf mask;
    int64_t first = 1, last = 12, every = 1;  // steps that are trained with masks
    std::vector<std::string> rules = {}, leave = {};
    bool ends = false;
  };
  const std::vector<Case> cases = {
      {"ste@2:4", two_of_four},
      {"s-ste@1:4", one_of_four},
      {"transposable+mask_every=1@2:4", tiles},
      {"t-sr-ste+mask_every=1@2:4", tiles, 1, 10},        // a dense tail of 2 steps
      {"ste+dense_head=0.3@2:4", two_of_four, 5, 12},     // masks from step 4 on
      {"ste+mask_every=3@2:4", two_of_four, 1, 12, 3},    // and held in between
      {"ste@2:4", by_rule, 1, 12, 1, {".*fc1=ste@1:4"}},  // a pattern of its own
      {"ste@2:4", two_of_four, 1, 12, 1, {".*proj=dense"}, {"blocks.0.attention.proj"}},
      {"ste@2:4", two_of_four, 1, 12, 1, {}, {}, true},
  };
  for (const Case& c : cases) {
    const ScratchFolder scratch;
    RunOptions options = text_run(scratch, "dense");
    options.flips_of = {c.counted};
    options.rules = c.rules;
    options.sparse_ends = c.ends;
    std::vector<std::string> layers;
    for (const std::string& one : blocks) {
      if (std::ranges::find(c.leave, one) == c.leave.end()) layers.push_back(one);
    }
    if (c.ends) layers.push_back("head");
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    std::vector<Weights> weights = {weights_now(trainer.model())};
    for (int64_t i = 0; i < options.steps; ++i) {
      trainer.advance(1);
      weights.push_back(weights_now(trainer.model()));
    }
    const RunResult result = trainer.finish();
    const std::vector<Json> lines = step_lines(scratch / "run");
    ASSERT_EQ(lines.size(), 12u);
    double sum = 0.0;
    for (int64_t step = 1; step <= 12; ++step) {
      // A mask that follows every step is found after it; others before a training pass, so that
      // what is found of the weights after three steps belongs to the fourth.
      const int64_t found = c.every == 1 ? step : step - 1;
      const bool counts = step >= c.first && step <= c.last && found > 0 && found % c.every == 0;
      const double expected =
          counts ? flips_between(weights[static_cast<size_t>(found - c.every)],
                                 weights[static_cast<size_t>(found)], layers, c.mask)
                 : 0.0;
      const Json& line = lines[static_cast<size_t>(step - 1)];
      EXPECT_NEAR(line["dense_flips"][c.counted].get<double>(), expected, 1e-12)
          << c.counted << " at step " << step;
      EXPECT_EQ(line["flip_rate"], line["dense_flips"][c.counted]);
      sum += expected;
    }
    EXPECT_GT(sum, 0.0) << c.counted;
    const double mean = sum / static_cast<double>(c.last - c.first + 1);
    EXPECT_NEAR(result.dense_flips.at(c.counted), mean, 1e-12) << c.counted;
    EXPECT_EQ(result.flip_rate, result.dense_flips.at(c.counted));
    EXPECT_EQ(read_run_result(scratch / "run").dense_flips, result.dense_flips);

    // The layers are those of the sparse run.
    options.recipe = c.counted.substr(0, c.counted.find('@'));
    options.pattern = c.counted.substr(c.counted.find('@') + 1);
    options.flips_of.clear();
    Trainer sparse = Trainer::begin(scratch / "sparse", make_parts(options));
    sparse.advance(1);
    const Json named = step_lines(scratch / "sparse").at(0)["layers"];
    EXPECT_EQ(named.size(), layers.size()) << c.counted;
    for (const std::string& layer : layers) EXPECT_TRUE(named.contains(layer)) << layer;
  }
}

TEST(DenseFlips, GoOnWhereTheyWere) {
  const ScratchFolder scratch;
  RunOptions options = small_run("mlp", "dense");
  options.pattern = "1:4";
  options.flips_of = {"ste", "ste+mask_every=5@2:4", "sr-ste+order_every=3@2:4x2"};
  const auto whole = scratch / "whole", pieces = scratch / "pieces";
  finished_model(whole, Trainer::begin(whole, make_parts(options)));
  interrupted_model(pieces, options, {3, 4, 5});
  const RunResult expected = read_run_result(whole);
  EXPECT_EQ(read_run_result(pieces).dense_flips, expected.dense_flips);
  EXPECT_EQ(expected.dense_flips.size(), 3u);
  EXPECT_TRUE(expected.dense_flips.contains("ste@1:4")) << "at the pattern of the run";
  for (const auto& [name, rate] : expected.dense_flips) EXPECT_GT(rate, 0.0) << name;
  EXPECT_FALSE(contains(contents(whole / "model.safetensors"), "flips")) << "not exported";
}

TEST(DenseFlips, OfWhatHasNoMasksOrOnlyScoresAreRefused) {
  RunOptions options;
  const OptionField& field = option_field("flips-of", "test");
  EXPECT_TRUE(contains(message_of([&] { field.set(options, {"dense"}); }), "has no masks"));
  EXPECT_TRUE(contains(message_of([&] { field.set(options, {"lbc@2:4"}); }), "scores"));
  EXPECT_TRUE(counted_flips(options).empty());
  options.dense_flips = true;
  EXPECT_TRUE(counted_flips(options).empty()) << "its own masks are counted";
  options.recipe = "dense";
  ASSERT_EQ(counted_flips(options).size(), 1u);
  EXPECT_EQ(counted_flips(options)[0].str(), "ste@2:4");
}

// 12 steps of which some are dense: the mean is over the others.
TEST(Trainer, MeanFlipRatesAreOfTheSparsePhase) {
  const std::vector<std::pair<std::string, int64_t>> cases = {
      {"ste", 12}, {"t-sr-ste+mask_every=1", 10}, {"ste+dense_head=0.5+dense_tail=0.25", 3}};
  for (const auto& [recipe, steps] : cases) {
    const ScratchFolder scratch;
    const RunOptions options = small_run("mlp", recipe);
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    trainer.advance(options.steps);
    const RunResult result = trainer.finish();
    int64_t changed = 0;
    for (const Json& line : step_lines(scratch / "run")) {
      changed += line["layers"]["hidden1"]["changed_bits"].get<int64_t>();
    }
    EXPECT_GT(changed, 0) << recipe;
    EXPECT_NEAR(result.flip_rate,
                static_cast<double>(changed) / static_cast<double>(16 * 16 * steps), 1e-12)
        << recipe;
  }
}

// ─── stopping ───

// Sets a flag when the n-th batch of training is asked for.
class StoppingSource : public BatchSource {
 public:
  StoppingSource(std::shared_ptr<BatchSource> source, int batch, std::atomic<int>& stop)
      : source_(std::move(source)), left_(batch), stop_(stop) {}
  ModelShape shape() const override { return source_->shape(); }
  int64_t train_samples() const override { return source_->train_samples(); }
  int64_t test_samples() const override { return source_->test_samples(); }
  Batch train_batch(std::span<const int64_t> samples, int64_t position) const override {
    if (--left_ == 0) stop_ = SIGTERM;
    return source_->train_batch(samples, position);
  }
  Batch test_batch(std::span<const int64_t> samples) const override {
    return source_->test_batch(samples);
  }
  std::string unit() const override { return source_->unit(); }
  int64_t units_per_sample() const override { return source_->units_per_sample(); }
  uint32_t fingerprint() const override { return source_->fingerprint(); }

 private:
  std::shared_ptr<BatchSource> source_;
  mutable int left_;
  std::atomic<int>& stop_;
};

// A step that is stopped between its micro-batches is as if it had never begun, for norms, samples
// of gradients and the order of the data, in this process and in the next.
TEST(Stop, BetweenMicroBatchesLosesNothing) {
  for (const std::string recipe : {"dense", "t-sr-ste", "lbc", "bi-mask"}) {
    RunOptions options = small_run("cnn", recipe);
    options.accumulate = 4;
    options.checkpoint_every = 0;
    const ScratchFolder scratch;
    const auto whole = scratch / "whole";
    const std::string expected = finished_model(whole, Trainer::begin(whole, make_parts(options)));
    for (const bool same_process : {true, false}) {
      std::atomic<int> stop{0};
      RunParts parts = make_parts(options);
      // One batch is for planning; 5 steps of 4 follow, and 2 of the next.
      parts.source = std::make_shared<StoppingSource>(parts.source, 1 + 5 * 4 + 2, stop);
      const auto folder = scratch / (same_process ? "same" : "next");
      {
        Trainer trainer = Trainer::begin(folder, parts);
        trainer.advance(options.steps, &stop);
        EXPECT_EQ(trainer.step(), 5) << recipe << ": the step was not finished";
        if (same_process) {
          EXPECT_EQ(finished_model(folder, std::move(trainer)), expected) << recipe;
          continue;
        }
        trainer.save_checkpoint();
      }
      EXPECT_EQ(finished_model(folder, Trainer::resume(folder, make_parts(resume_options(folder)))),
                expected)
          << recipe;
    }
  }
}

// An evaluation that is stopped is done when the run goes on, once; and so is the last one.
TEST(Stop, InAnEvaluationLosesNothing) {
  struct StopAt : TrainerListener {
    void on_evaluating(int64_t done, int64_t) override {
      if (done > 0 && --left == 0) stop = SIGTERM;
    }
    int left = 0;
    std::atomic<int> stop{0};
  };
  const auto evaluations = [](const std::filesystem::path& folder) {
    std::vector<std::pair<int64_t, double>> found;
    std::ifstream stream(folder / "metrics.jsonl");
    for (std::string line; std::getline(stream, line);) {
      const Json entry = Json::parse(line, "metrics");
      if (!entry.contains("eval_loss")) continue;
      found.emplace_back(entry["step"].get<int64_t>(), entry["eval_loss"].get<double>());
    }
    return found;
  };
  RunOptions options = small_run("mlp", "s-ste");
  options.eval_every = 4;
  const ScratchFolder scratch;
  const auto whole = scratch / "whole";
  finished_model(whole, Trainer::begin(whole, make_parts(options)));
  ASSERT_EQ(evaluations(whole).size(), 3u);  // at 4, 8 and 12
  // 20 samples in batches of 8: two calls of an evaluation are after its first batch.
  for (const int call : {1, 3, 5}) {
    const auto folder = scratch / fmt::format("stopped{}", call);
    {
      StopAt listener;
      listener.left = call;
      TrainerSetup setup;
      setup.listener = &listener;
      Trainer trainer = Trainer::begin(folder, make_parts(options), setup);
      trainer.advance(options.steps, &listener.stop);
      EXPECT_EQ(trainer.step(), 4 * ((call + 1) / 2));
      EXPECT_FALSE(trainer.finished() && trainer.finish(&listener.stop));
      EXPECT_NE(listener.stop, 0);
      trainer.save_checkpoint();
    }
    EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
    EXPECT_EQ(finished_model(folder, Trainer::resume(folder, make_parts(resume_options(folder)))),
              contents(whole / "model.safetensors"));
    EXPECT_EQ(evaluations(folder), evaluations(whole)) << call;
  }
}

TEST(Stop, APlannerMeasuresNothingMore) {
  std::atomic<int> stop{0};
  Planner planner(PlanMode::kAuto, "");
  planner.stop_when(&stop);
  const PlanRequest request{.shape = {8, 16, 16}, .pattern = Pattern(2, 4)};
  planner.plan(request);
  stop = SIGTERM;
  planner.plan(request);  // decided already
  EXPECT_THROW(planner.plan({.shape = {8, 16, 32}, .pattern = Pattern(2, 4)}), Stopped);
  planner.stop_when(nullptr);
  planner.plan({.shape = {8, 16, 32}, .pattern = Pattern(2, 4)});
}

// ─── resuming ───

TEST(Resume, EveryRecipeGoesOnBitForBit) {
  for (const std::string model : {"mlp", "cnn"}) {
    for (const Recipe& recipe : recipes()) {
      RunOptions options = small_run(model, recipe.name);
      options.optimizer = model == "mlp" ? "adamw" : "sgd";
      const ScratchFolder scratch;
      const auto whole = scratch / "whole", pieces = scratch / "pieces";
      const std::string expected =
          finished_model(whole, Trainer::begin(whole, make_parts(options)));
      EXPECT_EQ(interrupted_model(pieces, options, {3, 6, 5}), expected)
          << model << " by " << recipe.name;
    }
  }
}

TEST(Resume, TextAndAccumulationGoOnBitForBit) {
  const ScratchFolder scratch;
  RunOptions options = text_run(scratch, "t-sr-ste");
  options.accumulate = 2;
  const auto whole = scratch / "whole", pieces = scratch / "pieces";
  const std::string expected = finished_model(whole, Trainer::begin(whole, make_parts(options)));
  EXPECT_EQ(interrupted_model(pieces, options, {5, 4}), expected);
}

class SavedRun : public ::testing::Test {
 protected:
  SavedRun() : options_(small_run("mlp", "lbc")) {
    Trainer::begin(folder_, make_parts(options_)).advance(9);  // saved after 4 and 8
  }
  std::filesystem::path checkpoint(int64_t step) const {
    return folder_ / "checkpoints" / fmt::format("step-{:09}.safetensors", step);
  }
  int64_t resumed_step() {
    return Trainer::resume(folder_, make_parts(resume_options(folder_)), listening(notes_)).step();
  }

  ScratchFolder scratch_;
  std::filesystem::path folder_ = scratch_ / "run";
  RunOptions options_;
  Notes notes_;
};

TEST_F(SavedRun, TakesTheNewestCheckpoint) {
  EXPECT_EQ(resumed_step(), 8);
  EXPECT_EQ(notes_.all, "");
}

TEST_F(SavedRun, ATruncatedCheckpointIsNamedAndTheOneBeforeIsUsed) {
  std::filesystem::resize_file(checkpoint(8), std::filesystem::file_size(checkpoint(8)) - 5);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(contains(notes_.all, "refused: " + checkpoint(8).string())) << notes_.all;
}

TEST_F(SavedRun, ADamagedCheckpointIsNamedAndTheOneBeforeIsUsed) {
  std::string bytes = contents(checkpoint(8));
  bytes[bytes.size() - 7000] ^= 1;
  std::ofstream(checkpoint(8), std::ios::binary) << bytes;
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(contains(notes_.all, "checksum")) << notes_.all;
}

// Empty tensors (masks of dense layers, for one) stand among the others: what comes before them
// counts as well.
TEST_F(SavedRun, OneBitOfAnyTensorOrOfTheHeaderIsNoticed) {
  const std::string whole = contents(checkpoint(8));
  const SafetensorsReader reader(checkpoint(8));
  const std::vector<TensorInfo> tensors = reader.header().tensors;
  const size_t data = whole.size() - tensors.back().end;
  const auto problem = [&](size_t at, int bit) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
    put(checkpoint(8), bytes);
    return message_of([&] { read_tensors(checkpoint(8), Checksum::kYes); });
  };
  int empty = 0;
  for (const TensorInfo& tensor : tensors) {
    empty += tensor.bytes() == 0;
    for (const uint64_t at : {uint64_t{0}, tensor.bytes() / 2, tensor.bytes() - 1}) {
      if (tensor.bytes() == 0) break;
      const std::string found = problem(data + tensor.begin + at, static_cast<int>(at % 8));
      EXPECT_TRUE(contains(found, "checksum is not that of its contents"))
          << tensor.name << ": " << found;
    }
  }
  EXPECT_GT(empty, 0) << "there is no empty tensor here: the test has lost its point";
  for (size_t at = 0; at < data; ++at) {
    EXPECT_NE(problem(at, static_cast<int>(at % 8)), "(no Error)") << "byte " << at;
  }
  put(checkpoint(8), whole);
  EXPECT_NO_THROW(read_tensors(checkpoint(8), Checksum::kYes));
  const auto weight = std::ranges::find(tensors, "model.hidden1.weight", &TensorInfo::name);
  ASSERT_NE(weight, tensors.end());
  problem(data + weight->begin, 3);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(contains(notes_.all, "refused: " + checkpoint(8).string())) << notes_.all;
}

// The checksum of version 1 stopped counting at empty tensors.
TEST_F(SavedRun, ACheckpointOfVersion1IsRefusedInOneLine) {
  const TensorFile file = read_tensors(checkpoint(8));
  Metadata older = file.metadata;
  std::string& entry = older["weft.checkpoint"];
  entry.replace(entry.find("\"version\":2"), 11, "\"version\":1");
  write_tensors(checkpoint(8), NamedTensors(file.tensors.begin(), file.tensors.end()), older,
                Checksum::kYes);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(
      contains(notes_.all, "of version 1, accepted is 2: train with the weft that wrote it"))
      << notes_.all;
}

TEST_F(SavedRun, ACheckpointOfAnotherRunIsRefused) {
  const auto other = scratch_ / "other";
  RunOptions options = options_;
  options.seed = 2;
  Trainer::begin(other, make_parts(options)).advance(8);
  std::filesystem::copy_file(other / "checkpoints" / checkpoint(8).filename(), checkpoint(8),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(resumed_step(), 4);
  EXPECT_TRUE(contains(notes_.all, "of another run")) << notes_.all;
}

TEST_F(SavedRun, ANewerCheckpointAndAForeignFileAreRefused) {
  const TensorFile file = read_tensors(checkpoint(8));
  NamedTensors tensors(file.tensors.begin(), file.tensors.end());
  Metadata newer = file.metadata;
  std::string& entry = newer["weft.checkpoint"];
  entry.replace(entry.find("\"version\":2"), 11, "\"version\":3");
  write_tensors(checkpoint(8), tensors, newer, Checksum::kYes);
  write_tensors(checkpoint(4), tensors, {});
  EXPECT_TRUE(contains(message_of([&] { resumed_step(); }), "no checkpoint can be used"));
  EXPECT_TRUE(contains(notes_.all, "of version 3, accepted is 2")) << notes_.all;
  EXPECT_TRUE(contains(notes_.all, "not a checkpoint of a run of weft")) << notes_.all;
}

// Whoever edits a checkpoint, with or without a new checksum, does not get a run that goes wrong.
TEST_F(SavedRun, AnEditedCheckpointIsRefused) {
  const std::string whole = contents(checkpoint(8));
  const TensorFile file = read_tensors(checkpoint(8));
  const auto edited = [&](const std::string& from, const std::string& to) {
    Metadata metadata = file.metadata;
    std::string& entry = metadata["weft.checkpoint"];
    const size_t at = entry.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << entry;
    entry.replace(at, from.size(), to);
    return metadata;
  };
  const auto resumed_with = [&](const NamedTensors& tensors, const Metadata& metadata,
                                Checksum checksum) {
    write_tensors(checkpoint(8), tensors, metadata, checksum);
    notes_.all.clear();
    const int64_t step = resumed_step();
    EXPECT_TRUE(contains(notes_.all, "refused: " + checkpoint(8).string())) << notes_.all;
    return step;
  };
  const NamedTensors tensors(file.tensors.begin(), file.tensors.end());
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"step\":8", "\"step\":3"},
           {"\"step\":8", "\"step\":-5"},
           {"\"step\":8", "\"step\":1e300"},
           {"\"step\":8", "\"step\":\"x\""},
           {"\"data_position\":64", "\"data_position\":65"},
           {"\"optimizer_steps\":{", "\"optimizer_steps\":5,\"x\":{"},
           {"\"hidden1.weight\":8", "\"other\":8"},
           {"\"flips\":", "\"flops\":"}}) {
    EXPECT_EQ(resumed_with(tensors, edited(from, to), Checksum::kYes), 4) << to;
    EXPECT_EQ(resumed_with(tensors, edited(from, to), Checksum::kNo), 4) << "no checksum: " << to;
  }
  NamedTensors other = tensors;
  for (auto& [name, tensor] : other) {
    if (name == "random") tensor = torch::zeros({7}, torch::kByte);
  }
  EXPECT_EQ(resumed_with(other, file.metadata, Checksum::kYes), 4);
  EXPECT_TRUE(std::filesystem::exists(checkpoint(8).string() + ".refused"));
  std::ofstream(checkpoint(8), std::ios::binary) << whole;
  EXPECT_EQ(resumed_step(), 8);
}

TEST_F(SavedRun, ReportsTheWholeRun) {
  const auto whole = scratch_ / "whole";
  Trainer untouched = Trainer::begin(whole, make_parts(options_));
  untouched.advance(options_.steps);
  const RunResult expected = untouched.finish();
  RunResult found;
  {
    Trainer resumed = Trainer::resume(folder_, make_parts(resume_options(folder_)));
    resumed.advance(options_.steps);
    found = resumed.finish();
  }
  EXPECT_EQ(found.flip_rate, expected.flip_rate);
  EXPECT_EQ(found.products, expected.products);
  EXPECT_EQ(found.eval.loss, expected.eval.loss);
  EXPECT_EQ(found.density, expected.density);
  // Done is done.
  EXPECT_TRUE(
      contains(message_of([&] { Trainer::resume(folder_, make_parts(resume_options(folder_))); }),
               "the run is done"));
  EXPECT_EQ(read_run_result(folder_).eval.loss, expected.eval.loss);
}

TEST_F(SavedRun, GarbageDoesNotPushOutWhatIsGood) {
  for (const int64_t step : {999998, 999999}) std::ofstream(checkpoint(step)) << "garbage";
  std::ofstream(folder_ / "checkpoints" / ".step-1.safetensors.weft-1-1") << "half a file";
  {
    Trainer trainer = Trainer::resume(folder_, make_parts(resume_options(folder_)));
    trainer.advance(2);
    trainer.save_checkpoint();
  }
  EXPECT_EQ(resumed_step(), 10);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "checkpoints" / ".step-1.safetensors.weft-1-1"));
  std::filesystem::remove(folder_ / "run.json");
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(folder_, make_parts(options_)); }),
                       "checkpoints of a run that is gone"));
}

TEST_F(SavedRun, ARunWithoutItsMetricsIsNotLost) {
  std::filesystem::remove(folder_ / "metrics.jsonl");
  Trainer trainer =
      Trainer::resume(folder_, make_parts(resume_options(folder_)), listening(notes_));
  trainer.advance(options_.steps);
  EXPECT_GT(trainer.finish().step_seconds, 0.0);
  EXPECT_TRUE(contains(notes_.all, "lines are missing")) << notes_.all;
  EXPECT_TRUE(contains(notes_.all, "metrics.jsonl:1: not the line of step 1")) << notes_.all;
}

TEST_F(SavedRun, SaysWhatDiffers) {
  RunOptions options = resume_options(folder_);
  options.threads = 1;
  Trainer::resume(folder_, make_parts(options), listening(notes_));
  EXPECT_TRUE(contains(notes_.all, "threads: 2 then, 1 now")) << notes_.all;
  options.threads = 2;
  options.train_images = 63;  // as if the files had changed
  EXPECT_TRUE(contains(
      message_of([&] { Trainer::resume(folder_, make_parts(options), listening(notes_)); }),
      "is not what this run began with"));
}

TEST_F(SavedRun, KeepsToTheRecordedPlan) {
  // Whatever a planner would say now, the run's own choices stand.
  TrainerSetup setup;
  setup.planner = std::make_shared<Planner>(PlanMode::kDense, "");
  const Json before = read_run_record(folder_)["plan"];
  Trainer trainer = Trainer::resume(folder_, make_parts(resume_options(folder_)), setup);
  trainer.advance(4);
  for (const Json::Member& plan : before["plans"].members()) {
    EXPECT_EQ(read_run_record(folder_)["plan"]["plans"][plan.name], plan.value) << plan.name;
  }
}

TEST(Trainer, AFolderWithARunIsNotOverwritten) {
  const ScratchFolder scratch;
  const RunOptions options = small_run("mlp", "dense");
  { Trainer::begin(scratch / "run", make_parts(options)); }
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(scratch / "run", make_parts(options)); }),
                       "holds a run already"));
}

// ─── beginning with the weights of a file ───

using Promises = std::map<std::string, Promise>;

const Promise k24{Pattern(2, 4), Axis::kIn};
const Promise k24Both{Pattern(2, 4), Axis::kBoth};
const Promise k14{Pattern(1, 4), Axis::kIn};

// The tensors of a model that has seen a batch: statistics of norms are not what they begin with.
NamedTensors tensors_of(const RunOptions& options) {
  const RunParts parts = make_parts(options);
  const torch::NoGradGuard no_grad;
  const std::vector<int64_t> samples = {0, 1, 2, 3};
  parts.model->forward(parts.source->train_batch(samples, 0).inputs);
  const std::set<const void*> of_recipes = recipe_tensors(*parts.model);
  NamedTensors tensors;
  const auto add = [&](const auto& named) {
    if (of_recipes.contains(named.value().unsafeGetTensorImpl())) return;
    tensors.emplace_back(named.key(), named.value().detach().clone());
  };
  for (const auto& parameter : parts.model->named_parameters()) add(parameter);
  for (const auto& buffer : parts.model->named_buffers()) add(buffer);
  return tensors;
}

// Zero where the pattern wants it; and of what is left every third, so that groups have fewer
// non-zeros than they may, and rows that share have zeros of their own.
torch::Tensor thinned(const torch::Tensor& weight, const Promise& promise) {
  const torch::Tensor thin = weight.contiguous().clone();
  const WeightShape shape = WeightShape::of(weight.sizes());
  auto* values = thin.data_ptr<float>();
  const Mask mask =
      find_mask(default_solver(promise.axis == Axis::kBoth), values, shape, promise.pattern);
  int64_t kept = 0;
  for (int64_t i = 0; i < thin.numel(); ++i) {
    if (!mask.at(i / shape.cols(), i % shape.cols()) || ++kept % 3 == 0) values[i] = 0.0f;
  }
  return thin;
}

std::string write_init(const std::filesystem::path& path, NamedTensors tensors,
                       const Promises& promises) {
  for (auto& [name, tensor] : tensors) {
    if (promises.contains(name)) tensor = thinned(tensor, promises.at(name));
  }
  Metadata metadata;
  Sparsity{promises}.store_in(metadata);
  write_tensors(path, tensors, metadata);
  return path;
}

RunOptions tuned_run(const std::string& model, const std::string& recipe, const std::string& init) {
  RunOptions options = small_run(model, recipe);
  options.seed = 9;  // other weights than those of any file
  options.init = init;
  return options;
}

std::map<std::string, torch::Tensor> state_of(Model& model) {
  std::map<std::string, torch::Tensor> found;
  for (const auto& parameter : model.named_parameters()) found[parameter.key()] = parameter.value();
  for (const auto& buffer : model.named_buffers()) found[buffer.key()] = buffer.value();
  return found;
}

bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
}

TEST(Init, EveryTensorOfTheFileIsInTheModel) {
  const ScratchFolder scratch;
  for (const std::string model : {"mlp", "cnn"}) {
    const NamedTensors tensors = tensors_of(small_run(model));
    const std::string file = write_init(scratch / (model + ".safetensors"), tensors, {});
    for (const std::string recipe : {"dense", "s-ste", "lbc", "static"}) {
      Trainer trainer =
          Trainer::begin(scratch / (model + recipe), make_parts(tuned_run(model, recipe, file)));
      const auto state = state_of(trainer.model());
      for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(state.at(name), tensor)) << name;
    }
  }
}

TEST(Init, TheFileIsNotReplacedByTheModelOfTheRun) {
  const ScratchFolder scratch;
  std::filesystem::create_directory(scratch / "run");
  const std::string file =
      write_init(scratch / "run" / "model.safetensors", tensors_of(small_run("mlp")), {});
  const std::string before = contents(file);
  const std::string message = message_of(
      [&] { Trainer::begin(scratch / "run", make_parts(tuned_run("mlp", "dense", file))); });
  EXPECT_TRUE(contains(message, "model.safetensors is also a file of --init")) << message;
  EXPECT_EQ(contents(file), before);
}

TEST(Init, OtherFloatsAreConverted) {
  const ScratchFolder scratch;
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kDouble}) {
    NamedTensors tensors = tensors_of(small_run("cnn"));
    for (auto& [name, tensor] : tensors) {
      if (tensor.is_floating_point()) tensor = tensor.to(torch::kDouble).mul(1.0 / 3).to(type);
    }
    const std::string name = c10::toString(type);
    const std::string file = write_init(scratch / (name + ".safetensors"), tensors, {});
    Trainer trainer = Trainer::begin(scratch / name, make_parts(tuned_run("cnn", "dense", file)));
    const auto state = state_of(trainer.model());
    for (const auto& [key, tensor] : tensors) {
      const auto wanted = tensor.is_floating_point() ? tensor.to(torch::kFloat) : tensor;
      EXPECT_TRUE(same(state.at(key), wanted)) << name << " " << key;
    }
  }
}

TEST(Init, ShardsAreOneFile) {
  const ScratchFolder scratch;
  const NamedTensors tensors = tensors_of(small_run("mlp"));
  std::string map;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::string shard = fmt::format("s{}.safetensors", i);
    write_tensors(scratch / shard, {tensors[i]}, {});
    map += fmt::format("{}\"{}\": \"{}\"", i == 0 ? "" : ", ", tensors[i].first, shard);
  }
  const auto index = scratch / "model.safetensors.index.json";
  put(index, "{\"metadata\": {}, \"weight_map\": {" + map + "}}");
  Trainer trainer = Trainer::begin(scratch / "run", make_parts(tuned_run("mlp", "dense", index)));
  const auto state = state_of(trainer.model());
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(same(state.at(name), tensor)) << name;
}

// Expects the zeros of `before`, and that the other weights were trained.
void expect_tuned(const torch::Tensor& before, const torch::Tensor& after,
                  const std::string& what) {
  EXPECT_TRUE(torch::equal(before.eq(0), after.eq(0))) << what;
  const torch::Tensor kept = before.ne(0);
  EXPECT_GT(before.masked_select(kept)
                .ne(after.masked_select(kept))
                .to(torch::kDouble)
                .mean()
                .item<double>(),
            0.9)
      << what;
}

void expect_zeros_kept(const std::string& model, const std::string& layer,
                       const std::string& pattern, const std::string& optimizer) {
  SCOPED_TRACE(fmt::format("{} at {} by {}", model, pattern, optimizer));
  const ScratchFolder scratch;
  const std::string weight = layer + ".weight";
  const Promises promises = {{weight, {Pattern::parse(pattern), Axis::kIn}}, {"head.weight", k24}};
  const std::string file =
      write_init(scratch / "init.safetensors", tensors_of(small_run(model)), promises);
  RunOptions options = tuned_run(model, "static", file);
  options.optimizer = optimizer;
  options.weight_decay = 0.1;
  Notes notes;
  Trainer trainer = Trainer::begin(scratch / "run", make_parts(options), listening(notes));
  EXPECT_EQ(notes.all, "");
  trainer.advance(options.steps);
  const RunResult result = trainer.finish();
  const auto exported = scratch / "run" / "model.safetensors";
  const TensorFile before = read_tensors(file), after = read_tensors(exported);
  for (const auto& [name, promise] : promises) expect_tuned(before.at(name), after.at(name), name);
  EXPECT_EQ(broken_promise(exported), "");
  const Sparsity sparsity = Checkpoint::open(exported).sparsity();
  EXPECT_EQ(sparsity.tensors.size(), 2u);
  EXPECT_EQ(sparsity.tensors.at(weight).pattern.str(), pattern);
  EXPECT_LT(result.density, 0.4);
  const RunParts parts = load_model(scratch / "run");
  EXPECT_EQ(evaluate(*parts.model, *parts.source, options.batch, 0).loss, result.eval.loss);
}

TEST(Init, StaticKeepsEveryZero) {
  expect_zeros_kept("mlp", "hidden1", "2:4", "adamw");
  expect_zeros_kept("mlp", "hidden1", "1:4x2", "sgd");
  expect_zeros_kept("cnn", "stage1_0.conv2", "2:4", "sgd");
  expect_zeros_kept("cnn", "stage1_0.conv2", "1:4x2", "adamw");
}

// A mask with less in it than a solver would put there, along both axes: the three outputs and
// inputs of a ring leave no place for a fourth.
TEST(Init, AMaskAlongBothAxesStaysOne) {
  const ScratchFolder scratch;
  NamedTensors tensors = tensors_of(small_run("mlp"));
  for (auto& [name, tensor] : tensors) {
    if (name != "hidden1.weight") continue;
    const torch::Tensor tile = torch::zeros({4, 4});
    for (int64_t i = 0; i < 3; ++i) {
      tile[i][i] = 1.0;
      tile[i][(i + 1) % 3] = 1.0;
    }
    tensor = tensor * tile.repeat({4, 4});
  }
  Metadata metadata;
  Sparsity{{{"hidden1.weight", k24Both}}}.store_in(metadata);
  write_tensors(scratch / "init.safetensors", tensors, metadata);
  for (const std::string recipe : {"static", "static+forward=transposable"}) {
    const auto run = scratch / recipe;
    const RunOptions options = tuned_run("mlp", recipe, scratch / "init.safetensors");
    Notes notes;
    Trainer trainer = Trainer::begin(run, make_parts(options), listening(notes));
    EXPECT_EQ(notes.all, "");
    EXPECT_EQ(trainer.layers()[1].report.reason, "init promises 2:4 along both axes");
    trainer.advance(options.steps);
    const RunResult result = trainer.finish();
    const auto exported = run / "model.safetensors";
    expect_tuned(read_tensors(options.init).at("hidden1.weight"),
                 read_tensors(exported).at("hidden1.weight"), recipe);
    EXPECT_EQ(Checkpoint::open(exported).sparsity().tensors.at("hidden1.weight").axis, Axis::kBoth);
    EXPECT_EQ(broken_promise(exported), "");
    const RunParts parts = load_model(run);
    EXPECT_EQ(evaluate(*parts.model, *parts.source, options.batch, 0).loss, result.eval.loss);
  }
}

// Found once, from scratch after a dense head, or of a model that is N:M along inputs only: then
// what is zero stays zero, and a line says that more will be.
TEST(Init, AFixedMaskCanBeTransposable) {
  const ScratchFolder scratch;
  const std::string recipe = "static+forward=transposable";
  RunOptions options = small_run("mlp", recipe);
  options.exports = "packed";
  Trainer whole = Trainer::begin(scratch / "whole", make_parts(options));
  whole.advance(options.steps);
  const RunResult result = whole.finish();
  const auto model = scratch / "whole" / "model.safetensors";
  EXPECT_EQ(Checkpoint::open(model).sparsity().tensors.at("hidden1.weight").axis, Axis::kBoth);
  EXPECT_EQ(broken_promise(model), "");
  EXPECT_EQ(result.density, 0.5);
  EXPECT_TRUE(std::filesystem::exists(scratch / "whole" / "packed.safetensors"));
  EXPECT_EQ(interrupted_model(scratch / "pieces", options, {3, 6, 5}), contents(model));

  const std::string file = write_init(scratch / "init.safetensors", tensors_of(small_run("mlp")),
                                      {{"hidden1.weight", k24}});
  const RunOptions tuning = tuned_run("mlp", recipe, file);
  Notes notes;
  Trainer tuned = Trainer::begin(scratch / "tuned", make_parts(tuning), listening(notes));
  EXPECT_TRUE(contains(notes.all, "'hidden1.weight': promised along inputs only")) << notes.all;
  tuned.advance(tuning.steps);
  const RunResult tuned_result = tuned.finish();
  const auto exported = scratch / "tuned" / "model.safetensors";
  EXPECT_EQ(broken_promise(exported), "");
  const torch::Tensor before = read_tensors(file).at("hidden1.weight"),
                      after = read_tensors(exported).at("hidden1.weight");
  EXPECT_FALSE(before.eq(0).logical_and(after.ne(0)).any().item<bool>());
  EXPECT_LT(tuned_result.density, 0.5);
  const RunParts parts = load_model(scratch / "tuned");
  EXPECT_EQ(evaluate(*parts.model, *parts.source, tuning.batch, 0).loss, tuned_result.eval.loss);
}

// "recipe pattern (reason)" of every layer.
std::vector<std::string> layers_of_run(const Trainer& trainer) {
  std::vector<std::string> found;
  for (const PlannedLayer& layer : trainer.layers()) {
    const LayerReport& report = layer.report;
    found.push_back(fmt::format("{} {} ({})", report.recipe,
                                report.pattern.empty() ? "-" : report.pattern, report.reason));
  }
  return found;
}

std::vector<std::string> layers_with(const RunOptions& options) {
  const ScratchFolder scratch;
  return layers_of_run(Trainer::begin(scratch / "run", make_parts(options)));
}

TEST(Init, ThePlanOfTheFileSaysWhichLayersAreSparse) {
  const ScratchFolder scratch;
  const NamedTensors tensors = tensors_of(small_run("mlp"));
  const std::string planned = write_init(scratch / "planned.safetensors", tensors,
                                         {{"hidden0.weight", k14}, {"head.weight", k24}});
  const std::string bare = write_init(scratch / "bare.safetensors", tensors, {});
  RunOptions options = tuned_run("mlp", "static", planned);
  options.pattern = "4:8";
  using Layers = std::vector<std::string>;
  EXPECT_EQ(layers_with(options), (Layers{"static+dense_head=0 1:4 (init promises 1:4)",
                                          "dense - (init promises nothing for it)",
                                          "static+dense_head=0 2:4 (init promises 2:4)"}));
  options.recipe = "static+dense_head=0.25";
  EXPECT_EQ(layers_with(options)[0], "static+dense_head=0.25 1:4 (init promises 1:4)");
  options.recipe = "s-ste";
  EXPECT_EQ(layers_with(options),
            (Layers{"dense - (the first layer)", "s-ste 4:8 (the recipe of the config)",
                    "dense - (the last layer)"}));
  // A rule of the user comes first; one without a pattern leaves that to the file.
  options.rules = {"head=dense", "h.*0=static", "h.*=static@1:8"};
  EXPECT_EQ(layers_with(options),
            (Layers{"static+dense_head=0 1:4 (rule 'h.*0', init promises 1:4)",
                    "static+dense_head=0 1:8 (rule 'h.*')", "dense - (rule 'head')"}));
  options.rules = {"hidden1=static"};
  EXPECT_EQ(layers_with(options)[1], "static+dense_head=0 4:8 (rule 'hidden1')");
  options = tuned_run("mlp", "static", bare);
  options.pattern = "4:8";
  EXPECT_EQ(layers_with(options), (Layers{"dense - (the first layer)",
                                          "static+dense_head=0 4:8 (the recipe of the config)",
                                          "dense - (the last layer)"}));
  options.init.clear();
  EXPECT_EQ(layers_with(options)[1], "static 4:8 (the recipe of the config)");
}

TEST(Init, APromiseThatCannotBeKeptIsSaid) {
  const ScratchFolder scratch;
  const NamedTensors tensors = tensors_of(small_run("mlp"));
  const auto file = scratch / "init.safetensors";
  const auto write = [&](const Promises& promises) {
    Metadata metadata;
    Sparsity{promises}.store_in(metadata);
    write_tensors(file, tensors, metadata);
  };
  RunOptions options = tuned_run("mlp", "static", file);
  write({{"hidden1.weight", k24}, {"gone.weight", k24}});
  Notes notes;
  { Trainer::begin(scratch / "crowded", make_parts(options), listening(notes)); }
  EXPECT_EQ(notes.all, file.string() +
                           ": tensor 'hidden1.weight': not what weft.sparsity promises: "
                           "only the largest of each group are kept\n");
  write({{"hidden1.weight", {Pattern(2, 4), Axis::kOut}}});
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(scratch / "out", make_parts(options)); }),
                       file.string() + ": tensor 'hidden1.weight' is 2:4 along outputs only"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "out"));
  write({{"hidden1.weight", {Pattern(2, 4), Axis::kIn, "", true}}});
  EXPECT_TRUE(contains(message_of([&] { Trainer::begin(scratch / "out", make_parts(options)); }),
                       file.string() + ": tensor 'hidden1.weight' is stored [ins, outs]"));
  write({{"hidden1.weight", {Pattern(2, 4), Axis::kOut}}});
  options.rules = {"hidden1=dense"};
  { Trainer::begin(scratch / "out", make_parts(options)); }
  // More inputs to a group than the layer has: no matter, unless there are zeros.
  const Promises narrow = {{"hidden1.weight", {Pattern(16, 32), Axis::kIn}}};
  options.rules.clear();
  notes.all.clear();
  write(narrow);
  { Trainer::begin(scratch / "full", make_parts(options), listening(notes)); }
  EXPECT_EQ(notes.all, "");
  write_init(file, tensors, narrow);
  { Trainer::begin(scratch / "narrow", make_parts(options), listening(notes)); }
  EXPECT_TRUE(
      contains(notes.all, "tensor 'hidden1.weight': promised by weft.sparsity, but no sparse"))
      << notes.all;
}

TEST(Init, ARunGoesOnWithoutTheFile) {
  const ScratchFolder scratch;
  for (const auto& [recipe, model] :
       std::map<std::string, std::string>{{"static", "cnn"}, {"s-ste", "mlp"}, {"lbc", "mlp"}}) {
    const auto file = scratch / "init.safetensors";
    const std::string layer = model == "cnn" ? "stage1_0.conv2" : "hidden1";
    write_init(file, tensors_of(small_run(model)), {{layer + ".weight", k14}});
    const RunOptions options = tuned_run(model, recipe, file);
    const auto layers = layers_with(options);
    const auto whole = scratch / (recipe + "-whole"), pieces = scratch / (recipe + "-pieces");
    const std::string expected = finished_model(whole, Trainer::begin(whole, make_parts(options)));
    { Trainer::begin(pieces, make_parts(options)).advance(3); }  // not a checkpoint after step 0
    std::filesystem::remove(file);
    const auto resume = [&] { return Trainer::resume(pieces, make_parts(resume_options(pieces))); };
    EXPECT_EQ(resume().step(), 0);
    EXPECT_EQ(layers_of_run(resume()), layers) << recipe;
    { resume().advance(6); }
    { resume().advance(5); }
    EXPECT_EQ(finished_model(pieces, resume()), expected) << recipe;
  }
}

TEST(Init, ARunNeverGoesOnFromOtherWeights) {
  const ScratchFolder scratch;
  const auto file = write_init(scratch / "init.safetensors", tensors_of(small_run("mlp")), {});
  const RunOptions options = tuned_run("mlp", "dense", file);
  const auto folder = scratch / "run", other = scratch / "other";
  const auto first = [](const std::filesystem::path& path) {
    return path / "checkpoints" / "step-000000000.safetensors";
  };
  { Trainer::begin(folder, make_parts(options)); }
  // The same options, and a file of the same name with other weights in it.
  RunOptions wider = small_run("mlp");
  wider.seed = 3;
  write_init(file, tensors_of(wider), {});
  { Trainer::begin(other, make_parts(options)); }
  Notes notes;
  const auto resumed = [&] {
    return message_of(
        [&] { Trainer::resume(folder, make_parts(resume_options(folder)), listening(notes)); });
  };
  EXPECT_EQ(resumed(), "(no Error)");
  std::filesystem::copy_file(first(other), first(folder),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(contains(resumed(), "no checkpoint can be used"));
  EXPECT_TRUE(contains(notes.all, "of another run")) << notes.all;
  std::filesystem::remove(first(folder));
  EXPECT_TRUE(contains(resumed(), "no checkpoint is left"));
  // Killed before there was a record: a new run takes the folder, and nothing else from it.
  std::filesystem::remove(other / "run.json");
  const RunOptions random = small_run("mlp", "dense");
  { Trainer::begin(other, make_parts(random)).advance(1); }
  EXPECT_FALSE(std::filesystem::exists(first(other)));
  const auto whole = scratch / "whole";
  EXPECT_EQ(finished_model(other, Trainer::resume(other, make_parts(resume_options(other)))),
            finished_model(whole, Trainer::begin(whole, make_parts(random))));
}

TEST(Init, WhatDoesNotFitIsRefusedByName) {
  const ScratchFolder scratch;
  const NamedTensors tensors = tensors_of(small_run("cnn"));
  const std::string file = scratch / "init.safetensors";
  const auto refusal = [&](const std::string& init) {
    const std::string message = message_of(
        [&] { Trainer::begin(scratch / "run", make_parts(tuned_run("cnn", "static", init))); });
    EXPECT_FALSE(std::filesystem::exists(scratch / "run")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  // The file with another tensor in place of one, or without it.
  const auto with = [&](const std::string& name, const torch::Tensor& instead) {
    NamedTensors changed;
    for (const auto& [key, tensor] : tensors) {
      if (key != name) changed.emplace_back(key, tensor);
      if (key == name && instead.defined()) changed.emplace_back(key, instead);
    }
    EXPECT_TRUE(instead.defined() || changed.size() + 1 == tensors.size()) << name;
    write_tensors(file, changed, {});
    return refusal(file);
  };
  EXPECT_EQ(with("head.bias", {}), file + ": tensor 'head.bias' of the model is missing");
  EXPECT_EQ(with("norm.running_mean", {}),
            file + ": tensor 'norm.running_mean' of the model is missing");
  EXPECT_EQ(with("head.weight", torch::zeros({16, 31})),
            file + ": tensor 'head.weight' is of shape [16, 31], and the model's of [16, 32]");
  EXPECT_EQ(with("head.weight", torch::zeros({16, 32}, torch::kLong)),
            file + ": tensor 'head.weight' is of I64: accepted are F32, F16, BF16 and F64");
  EXPECT_TRUE(contains(with("norm.num_batches_tracked", torch::zeros({})),
                       file + ": tensor 'norm.num_batches_tracked' is of Float"));
  EXPECT_TRUE(contains(with("head.bias", torch::full({16}, 1e39, torch::kDouble)),
                       file + ": tensor 'head.bias' has a value that is not finite"));
  EXPECT_TRUE(contains(refusal(scratch / "none.safetensors"), "none.safetensors"));
  put(file, "no tensors here");
  EXPECT_TRUE(contains(refusal(file), file + ": "));
}

TEST(Init, TensorsThatTheModelDoesNotHaveAreLeftOut) {
  const ScratchFolder scratch;
  NamedTensors tensors = tensors_of(small_run("mlp"));
  const auto noted = [&](const std::string& name) {
    const std::string file = write_init(scratch / (name + ".safetensors"), tensors, {});
    Notes notes;
    Trainer::begin(scratch / name, make_parts(tuned_run("mlp", "dense", file)), listening(notes));
    return notes.all;
  };
  EXPECT_EQ(noted("none"), "");
  tensors.emplace_back("z.scale", torch::ones({2}));
  EXPECT_TRUE(contains(noted("one"), ": tensor 'z.scale': the model has none of that name"));
  tensors.emplace_back("z.shift", torch::ones({2}));
  EXPECT_TRUE(contains(noted("two"), ": tensor 'z.scale' and 1 more: the model"));
}

TEST(Init, AComparisonBeginsWithTheFile) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = tuned_run("mlp", "dense",
                          write_init(scratch / "init.safetensors", tensors_of(small_run("mlp")),
                                     {{"hidden1.weight", k24}}));
  options.recipes = {"static"};
  options.patterns = {"2:4"};
  const auto result = compare(scratch / "runs", options, nullptr, [](double) {});
  ASSERT_TRUE(result);
  EXPECT_EQ(result->rows[1].check, "ok");
  const auto model = scratch / "runs" / run_folder_name("static", "2:4", 9) / "model.safetensors";
  expect_tuned(read_tensors(options.run.init).at("hidden1.weight"),
               read_tensors(model).at("hidden1.weight"), "hidden1");
}

// ─── what is left ───

TEST(Export, EveryRecipeKeepsItsPromise) {
  for (const Recipe& recipe : recipes()) {
    for (const std::string pattern : {"2:4", "1:4x2"}) {
      const ScratchFolder scratch;
      RunOptions options = small_run("cnn", recipe.name);
      options.pattern = pattern;
      Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
      trainer.advance(options.steps);
      const RunResult result = trainer.finish();
      const auto model = scratch / "run" / "model.safetensors";
      EXPECT_EQ(broken_promise(model), "") << recipe.name;
      const Sparsity sparsity = Checkpoint::open(model).sparsity();
      const bool ends_dense = recipe.name == "dense" || recipe.schedule.dense_tail > 0;
      EXPECT_EQ(sparsity.tensors.empty(), ends_dense) << recipe.name;
      EXPECT_EQ(result.ends_dense, recipe.schedule.dense_tail > 0) << recipe.name;
      if (ends_dense) continue;
      const Promise& promise = sparsity.tensors.at("stage1_0.conv2.weight");
      EXPECT_EQ(promise.axis == Axis::kBoth, recipe.name == "transposable");
      EXPECT_EQ(promise.pattern.str(), pattern);
      EXPECT_EQ(read_run_result(scratch / "run").eval.loss, result.eval.loss);
    }
  }
}

// The second mode of the paper: masks by an approximation, which may keep fewer.
TEST(Export, KeepsThePromiseOfEverySolver) {
  for (const Solver& solver : solvers()) {
    if (!solver.transposable) continue;
    for (const std::string base : {"transposable+mask_every=4", "static+forward=transposable"}) {
      const std::string recipe = fmt::format("{}+solver={}", base, solver.name);
      const ScratchFolder scratch;
      RunOptions options = small_run("mlp", recipe);
      options.exports = "packed";
      Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
      trainer.advance(options.steps);
      const RunResult result = trainer.finish();
      const auto model = scratch / "run" / "model.safetensors";
      EXPECT_EQ(broken_promise(model), "") << recipe;
      EXPECT_EQ(Checkpoint::open(model).sparsity().tensors.at("hidden1.weight").axis, Axis::kBoth);
      EXPECT_EQ(result.density < 0.5, !solver.exact) << recipe << ": " << result.density;
      const TensorFile file = read_tensors(model);
      EXPECT_EQ(file.at("hidden1.weight").ne(0).to(torch::kDouble).mean().item<double>(),
                result.density);
      const RunParts parts = load_model(scratch / "run");
      EXPECT_EQ(evaluate(*parts.model, *parts.source, options.batch, 0).loss, result.eval.loss)
          << recipe;
      EXPECT_EQ(interrupted_model(scratch / "pieces", options, {3, 6, 5}), contents(model));
    }
  }
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

// The same of a file without the zeros.
std::string broken_promise_of_packed(const std::filesystem::path& model) {
  const Checkpoint files = Checkpoint::open(model);
  const PackedCheckpoint checkpoint(files);
  const Sparsity sparsity = files.sparsity();
  std::string problem = "nothing is packed";
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!tensor.packed()) continue;
    const Promise& promise = sparsity.tensors.at(tensor.info.name);
    const WeightShape shape = WeightShape::of(tensor.info.shape);
    const Mask nonzero =
        nonzero_mask(tensor.info.dtype, checkpoint.dense(tensor), shape.outs, shape.cols());
    const auto order = read_row_order(files, promise, shape.outs);
    if (count_groups_in(nonzero, shape, promise.pattern, order).violations > 0) {
      return tensor.info.name;
    }
    problem.clear();
  }
  return problem;
}

TEST(Export, ABrokenPromiseIsSeen) {
  const ScratchFolder scratch;
  Sparsity sparsity;
  sparsity.tensors.emplace("w", Promise{Pattern(2, 4), Axis::kIn});
  Metadata metadata;
  sparsity.store_in(metadata);
  write_tensors(scratch / "m.safetensors", {{"w", torch::ones({4, 4})}}, metadata);
  EXPECT_EQ(broken_promise(scratch / "m.safetensors"), "w: 4 groups violate 2:4");
}

// A run whose rows share by orders: it goes on bit for bit, its model carries them, and what reads
// the model knows them.
TEST(RowOrders, AreSavedInTheModel) {
  for (const std::string recipe : {"sr-ste+order_every=3", "transposable+order_every=2",
                                   "s-ste+order_every=4", "static+order_every=1"}) {
    for (const std::string model : {"mlp", "cnn"}) {
      SCOPED_TRACE(recipe + " " + model);
      const ScratchFolder scratch;
      RunOptions options = small_run(model, recipe);
      options.pattern = "2:4x2";
      options.exports = "packed";
      const auto run = scratch / "run", pieces = scratch / "pieces";
      Trainer trainer = Trainer::begin(run, make_parts(options));
      trainer.advance(options.steps);
      const RunResult result = trainer.finish();
      const auto file = run / "model.safetensors";
      EXPECT_EQ(interrupted_model(pieces, options, {3, 6, 5}), contents(file));
      EXPECT_EQ(broken_promise(file), "");
      EXPECT_EQ(broken_promise_of_packed(run / "packed.safetensors"), "");
      const std::string layer = model == "mlp" ? "hidden1" : "stage1_0.conv2";
      const Checkpoint checkpoint = Checkpoint::open(file);
      Promise promise = checkpoint.sparsity().tensors.at(layer + ".weight");
      EXPECT_EQ(promise.row_order, layer + ".row_order");
      const auto outs = read_tensors(file).at(layer + ".weight").size(0);
      EXPECT_EQ(read_row_order(checkpoint, promise, outs).size(), size_t(outs));
      const RunParts parts = load_model(run);
      EXPECT_EQ(evaluate(*parts.model, *parts.source, options.batch, 0).loss, result.eval.loss);
      int with_order = 0;
      const Json record = read_run_record(run);
      for (const Json& entry : record["layers"]) {
        if (!entry.contains("retained_as_rows_lie")) continue;
        ++with_order;
        if (recipe.starts_with("static")) continue;  // of weights that the mask was not found for
        EXPECT_GE(entry["retained"].get<double>(),
                  0.98 * entry["retained_as_rows_lie"].get<double>());
      }
      EXPECT_GT(with_order, 0);
    }
  }
}

TEST(RowOrders, OfAFileAreKeptByAFixedMask) {
  const ScratchFolder scratch;
  RunOptions options = small_run("mlp", "sr-ste+order_every=2");
  options.pattern = "2:4x2";
  const std::string file = scratch / "run" / "model.safetensors";
  finished_model(scratch / "run", Trainer::begin(scratch / "run", make_parts(options)));
  const RunOptions tuning = tuned_run("mlp", "static", file);
  Notes notes;
  {
    Trainer trainer = Trainer::begin(scratch / "tuned", make_parts(tuning), listening(notes));
    trainer.advance(6);
  }
  EXPECT_EQ(notes.all, "");
  finished_model(scratch / "tuned",
                 Trainer::resume(scratch / "tuned", make_parts(resume_options(scratch / "tuned"))));
  const auto tuned = scratch / "tuned" / "model.safetensors";
  expect_tuned(read_tensors(file).at("hidden1.weight"), read_tensors(tuned).at("hidden1.weight"),
               "hidden1");
  EXPECT_EQ(broken_promise(tuned), "");
  EXPECT_TRUE(same(read_tensors(file).at("hidden1.row_order"),
                   read_tensors(tuned).at("hidden1.row_order")));
}

TEST(RowOrders, ThatAreMalformedAreNamed) {
  const ScratchFolder scratch;
  RunOptions options = small_run("mlp", "sr-ste+order_every=2");
  options.pattern = "2:4x2";
  finished_model(scratch / "run", Trainer::begin(scratch / "run", make_parts(options)));
  const auto file = scratch / "run" / "model.safetensors";
  const TensorFile good = read_tensors(file);
  const std::string name = "hidden1.row_order";
  const auto with = [&](const torch::Tensor& order) {
    NamedTensors tensors;
    for (const auto& [key, tensor] : good.tensors) {
      if (key != name) tensors.emplace_back(key, tensor);
    }
    if (order.defined()) tensors.emplace_back(name, order);
    write_tensors(file, tensors, good.metadata);
    const std::string message = message_of([&] { load_model(scratch / "run"); });
    EXPECT_EQ(message_of([&] { broken_promise(file); }), message);
    EXPECT_TRUE(contains(message, file.string())) << message;
    EXPECT_TRUE(contains(message, name)) << message;
    return message;
  };
  const torch::Tensor order = good.at(name);
  EXPECT_TRUE(contains(with(order.slice(0, 1)), "I64 of shape [16]"));
  EXPECT_TRUE(contains(with(order.to(torch::kInt)), "is I32 of shape [16]"));
  EXPECT_TRUE(contains(with(torch::zeros_like(order)), "each of them must be there once"));
  EXPECT_TRUE(contains(with(order + 1), "each of them must be there once"));
  EXPECT_TRUE(contains(with(torch::Tensor()), "which is not there"));
}

TEST(LoadModel, EvaluatesAsTheRunDid) {
  for (const std::string recipe : {"s-ste", "transposable", "lbc", "dense"}) {
    const ScratchFolder scratch;
    const RunOptions options = small_run("cnn", recipe);
    Trainer trainer = Trainer::begin(scratch / "run", make_parts(options));
    trainer.advance(options.steps);
    const RunResult result = trainer.finish();
    RunParts parts = load_model(scratch / "run");
    const EvalReport again = evaluate(*parts.model, *parts.source, options.batch, 0);
    EXPECT_EQ(again.loss, result.eval.loss) << recipe;
    EXPECT_EQ(again.accuracy, result.eval.accuracy) << recipe;
  }
  EXPECT_TRUE(contains(message_of([] { load_model("/nowhere"); }), "no run there"));
}

// ─── bf16 ───

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

TEST(Bf16, TheNameOfAnFp32RunIsThatOfBefore) {
  RunOptions options = small_run("mlp");
  Json all = options.to_json();
  for (const char* later :
       {"init", "precision", "flips-of", "threads", "plan", "checkpoint-every", "export"}) {
    all.erase(later);
  }
  const std::string text = all.dump();
  EXPECT_EQ(run_name(options, 7, std::nullopt),
            fmt::format("{:08x}-00000007", checksum(0, std::as_bytes(std::span(text)))));
  const std::string wide = run_name(options, 7, std::nullopt);
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
                       "a run with --precision bf16, and fp32 is asked for"));
}

// ─── comparing ───

TEST(Compare, BeginsAlikeAndGoesOnWhereItWasStopped) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = small_run("mlp");
  options.recipes = {"dense", "sr-ste", "t-sr-ste@1:4"};
  options.patterns = {"2:4"};
  options.seeds = 2;
  std::atomic<int> stop{0};
  const auto nothing = compare(scratch / "a", options, &stop, [&](double done) {
    if (done > 0.3) stop = 1;
  });
  EXPECT_FALSE(nothing);
  double done = 0;
  const auto result = compare(scratch / "a", options, nullptr, [&](double now) { done = now; });
  ASSERT_TRUE(result);
  EXPECT_EQ(done, 1.0);
  const auto whole = compare(scratch / "b", options, nullptr, [](double) {});
  ASSERT_EQ(result->rows.size(), 3u);
  EXPECT_EQ(result->metric, "eval_accuracy");
  EXPECT_EQ(result->rows[0].recipe, "dense");
  EXPECT_EQ(result->rows[1].check, "ok");
  EXPECT_EQ(result->rows[2].pattern, "1:4");
  EXPECT_EQ(result->rows[2].check, "dense by design");
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result->rows[i].metrics, whole->rows[i].metrics) << "stopped or not";
    EXPECT_EQ(result->rows[i].metrics.size(), 2u);
    EXPECT_GT(result->rows[i].step_ratio, 0.0);
  }
  // Done already: nothing is trained again. Other options: refused.
  EXPECT_TRUE(compare(scratch / "a", options, nullptr, [](double) { FAIL(); }));
  options.run.steps = 13;
  EXPECT_TRUE(contains(message_of([&] { compare(scratch / "a", options, nullptr, [](double) {}); }),
                       "a run with --steps 12, and 13 is asked for"));
}

double median_step_ms(const std::filesystem::path& folder) {
  std::vector<double> all;
  for (const Json& line : step_lines(folder)) all.push_back(line["step_ms"].get<double>());
  std::ranges::sort(all);
  return all.size() % 2 == 1 ? all[all.size() / 2]
                             : 0.5 * (all[all.size() / 2 - 1] + all[all.size() / 2]);
}

// What is added to a finished comparison is timed against a dense run that takes turns with it.
TEST(Compare, AnAddedRecipeTakesTurnsWithADenseRunOfItsOwn) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = small_run("mlp");
  options.run.dense_flips = true;
  options.recipes = {"sr-ste", "lbc"};
  options.patterns = {"2:4"};
  options.seeds = 1;
  const auto folder = scratch / "a";
  const auto first = compare(folder, options, nullptr, [](double) {});
  ASSERT_TRUE(first);
  const std::string before = contents(folder / "dense-seed1" / "metrics.jsonl");
  EXPECT_FALSE(std::filesystem::exists(folder / "dense-seed1-turns2"));
  options.recipes = {"sr-ste", "lbc", "transposable+mask_every=1"};

  // Stopped and gone on with, they still are a pair.
  std::atomic<int> stop{0};
  EXPECT_FALSE(compare(folder, options, &stop, [&](double) { stop = 1; }));
  const std::string added = run_folder_name("transposable+mask_every=1", "2:4", 1);
  const size_t dense_steps = step_lines(folder / "dense-seed1-turns2").size();
  EXPECT_EQ(dense_steps, 5u) << "turns of five steps";
  const auto result = compare(folder, options, nullptr, [](double) {});
  ASSERT_TRUE(result);
  EXPECT_FALSE(std::filesystem::exists(folder / "dense-seed1-turns3"));
  EXPECT_EQ(contents(folder / "dense-seed1" / "metrics.jsonl"), before) << "it is done";
  EXPECT_EQ(contents(folder / "dense-seed1-turns2" / "model.safetensors"),
            contents(folder / "dense-seed1" / "model.safetensors"));
  ASSERT_EQ(result->rows.size(), 4u);
  EXPECT_EQ(result->rows[1].step_ratio, first->rows[1].step_ratio);
  EXPECT_NEAR(result->rows[3].step_ratio,
              median_step_ms(folder / "dense-seed1-turns2") / median_step_ms(folder / added), 1e-9);

  // Flips of the dense run, by the masks of each.
  EXPECT_FALSE(result->rows[0].dense_flips);
  EXPECT_FALSE(result->rows[2].dense_flips) << "lbc";
  ASSERT_TRUE(result->rows[1].dense_flips && result->rows[3].dense_flips);
  RunOptions alone = options.run;
  alone.recipe = "dense";
  alone.dense_flips = false;
  alone.flips_of = {"transposable+mask_every=1@2:4", "sr-ste@2:4"};
  finished_model(scratch / "alone", Trainer::begin(scratch / "alone", make_parts(alone)));
  const auto counted = read_run_result(scratch / "alone").dense_flips;
  EXPECT_EQ(*result->rows[1].dense_flips, counted.at("sr-ste@2:4"));
  EXPECT_EQ(*result->rows[3].dense_flips, counted.at("transposable+mask_every=1@2:4"));
}

// Nothing has begun while plans are made: a comparison that is stopped there leaves it at that.
TEST(Compare, StopsWhileItPlansAndWhileItEvaluates) {
  const ScratchFolder scratch;
  CompareOptions options;
  options.run = small_run("mlp");
  options.run.plan = "auto";
  options.run.width = 20;  // of no other test: it has to be measured
  options.recipes = {"sr-ste"};
  options.patterns = {"2:4"};
  options.seeds = 1;
  const std::string before = std::getenv("XDG_CACHE_HOME") ? std::getenv("XDG_CACHE_HOME") : "";
  ::setenv("XDG_CACHE_HOME", (scratch / "cache").c_str(), 1);
  std::atomic<int> stop{SIGTERM};
  EXPECT_FALSE(compare(scratch / "a", options, &stop, [](double) { FAIL(); }));
  EXPECT_FALSE(std::filesystem::exists(scratch / "a" / "sr-ste-2of4-seed1"));

  struct StopInEvaluation : TrainerListener {
    explicit StopInEvaluation(std::atomic<int>& stop) : stop(stop) {}
    void on_evaluating(int64_t, int64_t) override { stop = SIGTERM; }
    std::atomic<int>& stop;
  } listener(stop);
  stop = 0;
  EXPECT_FALSE(compare(
      scratch / "a", options, &stop, [](double) {}, &listener));
  EXPECT_EQ(step_lines(scratch / "a" / "sr-ste-2of4-seed1").size(), 12u);
  EXPECT_TRUE(compare(scratch / "a", options, nullptr, [](double) {}));
  before.empty() ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", before.c_str(), 1);
}

// The same first weights and data: the first loss is that of the same numbers, dense or not.
TEST(Compare, GivesEveryRunTheSameStart) {
  const ScratchFolder scratch;
  std::vector<double> first;
  for (const std::string recipe : {"dense", "lbc"}) {  // lbc begins dense
    Notes notes;
    Trainer trainer =
        Trainer::begin(scratch / recipe, make_parts(small_run("mlp", recipe)), listening(notes));
    trainer.advance(1);
    first.push_back(notes.losses[0]);
  }
  EXPECT_EQ(first[0], first[1]);
}

}  // namespace
}  // namespace weft::test
