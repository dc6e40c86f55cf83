// Learning rates, and which parameters decay.
#include "weft/train/optimizer.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <set>

#include "tests/support.h"
#include "tests/train/runs.h"

namespace weft::test {
namespace {

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

}  // namespace
}  // namespace weft::test
