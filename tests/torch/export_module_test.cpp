// Any torch module that trains sparse becomes a file that check and pack take.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/layers.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/prune/check_checkpoint.h"
#include "weft/prune/pack_checkpoint.h"
#include "weft/torch/export_model.h"
#include "weft/torch/sparsify.h"
#include "weft/torch/tensor_file.h"

namespace weft::test {
namespace {

// Not a weft::Model: layers of torch, one of weft, norms with buffers, and a layer in two places.
struct ExportedNetImpl : torch::nn::Module {
  ExportedNetImpl() {
    torch::manual_seed(4);
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(16));
    fc = register_module("fc", torch::nn::Linear(64, 32));
    again = register_module("again", torch::nn::Linear(32, 32));
    register_module("alias", again);
    own = register_module("own", Linear(32, 16));
    register_buffer("scale", torch::full({1}, 0.5));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor h = torch::relu(norm(conv(x))).flatten(1);
    return own(torch::relu(again(torch::relu(again(torch::relu(fc(h)))))));
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear fc{nullptr}, again{nullptr};
  Linear own{nullptr};
};
TORCH_MODULE(ExportedNet);

SparsifyConfig every_layer(const std::string& recipe, const std::string& pattern) {
  SparsifyConfig config;
  config.recipe = recipe;
  config.pattern = Pattern::parse(pattern);
  config.total_steps = 12;
  config.first_and_last_dense = false;
  config.planner = std::make_shared<Planner>(PlanMode::kSparse, "");
  return config;
}

void train(ExportedNet& model, torch::optim::Optimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    optimizer.zero_grad();
    model(torch::randn({4, 8, 4, 4})).square().mean().backward();
    step(*model, optimizer);
  }
}

TEST(ExportModule, CheckAndPackTakeTheFile) {
  const std::set<std::string> sparse = {"conv.weight", "fc.weight", "again.weight", "alias.weight",
                                        "own.weight"};
  for (const auto& [recipe, pattern, axis] :
       std::vector<std::tuple<std::string, std::string, Axis>>{
           {"sr-ste", "2:4", Axis::kIn},
           {"s-ste+dense_tail=0", "1:4", Axis::kIn},
           {"transposable", "2:4", Axis::kBoth},
           {"static+dense_head=0", "2:4", Axis::kIn},
           {"sr-ste+order_every=1", "2:4x2", Axis::kIn}}) {
    SCOPED_TRACE(recipe);
    const ScratchFolder scratch;
    ExportedNet model;
    sparsify(*model, every_layer(recipe, pattern));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    train(model, optimizer, 5);
    const auto path = scratch / "model.safetensors", packed = scratch / "packed.safetensors";
    export_model(path, *model);
    const Sparsity promised = Checkpoint::open(path).sparsity();
    std::set<std::string> names;
    for (const auto& [name, promise] : promised.tensors) {
      names.insert(name);
      EXPECT_EQ(promise.pattern.str(), pattern) << name;
      EXPECT_EQ(promise.axis, axis) << name;
      EXPECT_EQ(promise.row_order.empty(), pattern != "2:4x2") << name;
    }
    EXPECT_EQ(names, sparse);
    CheckOptions check;
    check.file = path;
    const CheckReport report = check_checkpoint(check);
    EXPECT_EQ(report.tensors.size(), sparse.size());
    EXPECT_TRUE(report.valid());
    PackOptions pack;
    pack.in = path;
    pack.out = {packed};
    EXPECT_EQ(pack_checkpoint(pack).tensors.size(), sparse.size());
    EXPECT_LT(std::filesystem::file_size(packed), std::filesystem::file_size(path));

    train(model, optimizer, 1);  // it goes on, and the file has the weights of before
    densify(*model);
    EXPECT_FALSE(torch::equal(read_tensors(path).at("fc.weight"), model->fc->weight));
    export_model(path, *model);
    EXPECT_TRUE(Checkpoint::open(path).sparsity().tensors.empty());
    const TensorFile file = read_tensors(path);
    EXPECT_TRUE(torch::equal(file.at("fc.weight"), model->fc->weight));
    EXPECT_TRUE(torch::equal(file.at("alias.bias"), model->again->bias));
    EXPECT_TRUE(torch::equal(file.at("scale"), torch::full({1}, 0.5)));
    EXPECT_TRUE(torch::equal(file.at("norm.running_var"), model->norm->running_var));
    EXPECT_EQ(file.tensors.size(), model->named_parameters().size() + 4);
  }
}

// The weights in the file are those that the sparse model multiplies with, and nothing of a recipe.
TEST(ExportModule, ADenseModelComputesTheSameFromTheFile) {
  for (const std::string recipe : {"s-ste+dense_tail=0", "lbc", "bi-mask"}) {
    SCOPED_TRACE(recipe);
    const ScratchFolder scratch;
    ExportedNet model, dense;
    sparsify(*model, every_layer(recipe, "2:4"));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    train(model, optimizer, 3);
    export_model(scratch / "model.safetensors", *model);
    // lbc has not removed all yet, so there is nothing to promise.
    EXPECT_EQ(Checkpoint::open(scratch / "model.safetensors").sparsity().tensors.empty(),
              recipe == "lbc");
    const TensorFile file = read_tensors(scratch / "model.safetensors");
    EXPECT_EQ(file.tensors.size(), dense->named_parameters().size() + 4);
    const torch::NoGradGuard no_grad;
    for (auto& one : dense->named_parameters()) one.value().copy_(file.at(one.key()));
    for (auto& one : dense->named_buffers()) {
      if (file.tensors.contains(one.key())) one.value().copy_(file.at(one.key()));
    }
    model->eval();
    dense->eval();
    const torch::Tensor x = torch::randn({4, 8, 4, 4});
    const torch::Tensor expected = dense(x);
    EXPECT_LT(difference(model(x), expected), 1e-5);
    EXPECT_GT(expected.abs().max().item<double>(), 1e-2);
  }
}

// A module that is a layer itself has no name before its weight.
TEST(ExportModule, ARootThatIsALayerHasItsWeight) {
  const ScratchFolder scratch;
  torch::nn::Linear torchs(16, 16);
  Linear own(16, 16);
  for (torch::nn::Module* model : {static_cast<torch::nn::Module*>(torchs.get()),
                                   static_cast<torch::nn::Module*>(own.get())}) {
    sparsify(*model, every_layer("ste", "2:4"));
    export_model(scratch / "model.safetensors", *model);
    CheckOptions check;
    check.file = scratch / "model.safetensors";
    const CheckReport report = check_checkpoint(check);
    ASSERT_EQ(report.tensors.size(), 1u);
    EXPECT_EQ(report.tensors[0].info.name, "weight");
    EXPECT_TRUE(report.valid());
  }
}

TEST(ExportModule, WhatCannotBeStoredIsNamed) {
  const ScratchFolder scratch;
  ExportedNet model;
  model->register_buffer("odd", torch::zeros({2}, torch::kComplexFloat));
  EXPECT_TRUE(contains(message_of([&] { export_model(scratch / "m.safetensors", *model); }),
                       "tensor 'odd': ComplexFloat cannot be stored"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "m.safetensors"));
}

}  // namespace
}  // namespace weft::test
