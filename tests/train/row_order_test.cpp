// Row orders of shared patterns, from training to the model and back.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support.h"
#include "tests/train/runs.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/row_order_tensor.h"
#include "weft/mask/verify.h"
#include "weft/pack/packed_file.h"
#include "weft/torch/tensor_file.h"
#include "weft/train/compare.h"
#include "weft/train/load_model.h"

namespace weft::test {
namespace {

// What broken_promise says of a model, of its packed file.
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
        if (!entry.contains("retained_unpermuted")) continue;
        ++with_order;
        if (recipe.starts_with("static")) continue;  // of weights that the mask was not found for
        EXPECT_GE(entry["retained"].get<double>(),
                  0.98 * entry["retained_unpermuted"].get<double>());
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
  EXPECT_TRUE(contains(with(torch::zeros_like(order)), "not a permutation of"));
  EXPECT_TRUE(contains(with(order + 1), "not a permutation of"));
  EXPECT_TRUE(contains(with(torch::Tensor()), "which is missing"));
}

}  // namespace
}  // namespace weft::test
