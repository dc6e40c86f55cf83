// The size of a model is known before it is made.
#include "weft/train/model_memory.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/run/memory.h"

namespace weft::test {
namespace {

TEST(ModelMemory, TheCountIsThatOfTheModel) {
  const ScratchFolder scratch;
  for (const std::string model : {"mlp", "cnn", "resnet18", "vit", "gpt"}) {
    for (const auto& [width, depth] : {std::pair<int64_t, int64_t>{24, 1}, {52, 3}, {4, 2}}) {
      RunOptions options = model == "gpt" ? text_run(scratch, "ste") : small_run(model);
      options.width = width;
      options.depth = depth;
      const RunParts parts = make_parts(options);
      double count = 0.0;
      for (const torch::Tensor& one : parts.model->parameters()) {
        count += static_cast<double>(one.numel());
      }
      EXPECT_EQ(parameter_count(parts.options, parts.source->shape()), count)
          << model << " of width " << width << " and depth " << depth;
    }
  }
}

TEST(ModelMemory, WhatCannotFitIsRefused) {
  RunOptions options = small_run("mlp");
  options.width = 1 << 16;
  options.depth = 1000;
  const std::string problem = message_of([&] { make_parts(options); });
  EXPECT_TRUE(contains(problem, "mlp of width 65536 and depth 1000: weights, gradients and adamw"))
      << problem;
  EXPECT_TRUE(contains(problem, "need 68652.6 GB, but this machine has ")) << problem;
}

// Evaluation needs the weights alone: a quarter of what training with adamw needs.
TEST(ModelMemory, EvaluationNeedsLessThanTraining) {
  if (memory_bytes() == 0) GTEST_SKIP() << "the system does not say how much memory there is";
  RunOptions options = small_run("mlp").resolved();
  options.width = 4096;
  const double layer = sizeof(float) * 4096.0 * 4096.0;  // bytes of its weights
  options.depth = static_cast<int64_t>(0.5 * static_cast<double>(memory_bytes()) / layer);
  const ModelShape shape{1, 28, 28, 16};
  require_memory(options, shape, ModelUse::kEvaluation);
  EXPECT_TRUE(
      contains(message_of([&] { require_memory(options, shape, ModelUse::kTraining); }), "need "));
  options.depth *= 3;
  const std::string problem =
      message_of([&] { require_memory(options, shape, ModelUse::kEvaluation); });
  EXPECT_TRUE(contains(problem, ": weights of ")) << problem;
}

}  // namespace
}  // namespace weft::test
