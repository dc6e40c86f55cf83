// The model that a run leaves keeps what its recipe promises.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/mask/solver.h"
#include "weft/run/run_result.h"
#include "weft/torch/tensor_file.h"
#include "weft/train/compare.h"
#include "weft/train/load_model.h"

namespace weft::test {
namespace {

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

TEST(Export, ABrokenPromiseIsSeen) {
  const ScratchFolder scratch;
  Sparsity sparsity;
  sparsity.tensors.emplace("w", Promise{Pattern(2, 4), Axis::kIn});
  Metadata metadata;
  sparsity.store_in(metadata);
  write_tensors(scratch / "m.safetensors", {{"w", torch::ones({4, 4})}}, metadata);
  EXPECT_EQ(broken_promise(scratch / "m.safetensors"), "w: 4 groups violate 2:4");
}

}  // namespace
}  // namespace weft::test
