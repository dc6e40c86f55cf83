// Small runs for tests of the trainer: their options, and what they leave.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/scratch_folder.h"
#include "weft/core/json.h"
#include "weft/run/run_folder.h"
#include "weft/train/run_setup.h"
#include "weft/train/trainer.h"

namespace weft::test {

// Small, with products of all kinds, and no second spent on planning.
inline RunOptions small_run(const std::string& model, const std::string& recipe = "s-ste") {
  RunOptions options;
  options.model = model;
  options.recipe = recipe;
  options.width = model == "cnn" || model == "resnet18" ? 8 : 16;
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

inline TrainerSetup listening(Notes& notes) {
  TrainerSetup setup;
  setup.listener = &notes;
  return setup;
}

inline RunOptions text_run(const ScratchFolder& scratch, const std::string& recipe) {
  std::ofstream text(scratch / "text");
  for (int i = 0; i < 200; ++i) text << "line " << i * 7 % 31 << " of a text\n";
  RunOptions options = small_run("gpt", recipe);
  options.data = "text:" + (scratch / "text").string();
  return options;
}

inline std::string finished_model(const std::filesystem::path& folder, Trainer trainer) {
  trainer.advance(trainer.options().steps);
  trainer.finish();
  return contents(folder / "model.safetensors");
}

inline Trainer resumed(const std::filesystem::path& folder, const RunOptions& options) {
  return Trainer::resume(folder, make_parts(options));
}

// Begins, is dropped after some steps without a word, and goes on until the end.
inline std::string interrupted_model(const std::filesystem::path& folder, const RunOptions& options,
                                     const std::vector<int64_t>& interruptions) {
  { Trainer::begin(folder, make_parts(options)).advance(interruptions[0]); }
  for (size_t i = 1; i < interruptions.size(); ++i) {
    Trainer::resume(folder, make_parts(resume_options(folder))).advance(interruptions[i]);
  }
  return finished_model(folder, Trainer::resume(folder, make_parts(resume_options(folder))));
}

// The lines of metrics.jsonl that tell of steps.
inline std::vector<Json> step_lines(const std::filesystem::path& folder) {
  std::vector<Json> lines;
  std::ifstream stream(folder / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);) {
    const Json entry = Json::parse(line, "metrics");
    if (entry.contains("loss")) lines.push_back(entry);
  }
  return lines;
}

// Begins with the weights of a file.
inline RunOptions tuned_run(const std::string& model, const std::string& recipe,
                            const std::string& init) {
  RunOptions options = small_run(model, recipe);
  options.seed = 9;  // other weights than those of any file
  options.init = init;
  return options;
}

inline bool same(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && torch::equal(a, b);
}

// Expects the zeros of `before`, and that the other weights were trained.
inline void expect_tuned(const torch::Tensor& before, const torch::Tensor& after,
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

}  // namespace weft::test
