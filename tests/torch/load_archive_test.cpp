// Weights of a dense model into a sparsified one: recipes begin again with them.
#include "weft/torch/load_archive.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/layers.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/torch/export_model.h"
#include "weft/torch/sparsify.h"
#include "weft/torch/tensor_file.h"
#include "weft/train/init_weights.h"

namespace weft::test {
namespace {

// Layers of torch, of weft if `own`, and attention.
struct LoadedNetImpl : torch::nn::Module {
  explicit LoadedNetImpl(uint64_t seed = 1, bool own = true) {
    torch::manual_seed(seed);
    fc = register_module("fc", torch::nn::Linear(16, 32));
    attention = register_module("attention", torch::nn::MultiheadAttention(32, 2));
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 1)));
    if (own) {
      mine = register_module("last", Linear(32, 8));
    } else {
      torchs = register_module("last", torch::nn::Linear(32, 8));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {  // [tokens, batch, 16]
    const torch::Tensor h = torch::relu(fc(x));
    const torch::Tensor a = std::get<0>(attention->forward(h, h, h));
    const torch::Tensor y = mine ? mine(a) : torchs(a);
    return conv(y.permute({1, 2, 0}).unsqueeze(3)).squeeze(3);
  }
  torch::nn::Linear fc{nullptr}, torchs{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  torch::nn::Conv2d conv{nullptr};
  Linear mine{nullptr};
};
TORCH_MODULE(LoadedNet);

SparsifyConfig loaded_config(const std::string& recipe) {
  SparsifyConfig config;
  config.recipe = recipe;
  config.total_steps = 12;
  config.first_and_last_dense = false;
  config.planner = std::make_shared<Planner>(PlanMode::kSparse, "");
  return config;
}

const std::vector<std::string> kLoadedLayers = {"fc", "attention.out_proj", "attention.in_proj",
                                                "conv", "last"};

void train_loaded(LoadedNet& model, torch::optim::Optimizer& optimizer, int steps) {
  for (int i = 0; i < steps; ++i) {
    torch::manual_seed(static_cast<uint64_t>(50 + i));
    optimizer.zero_grad();
    model(torch::randn({5, 4, 16})).square().mean().backward();
    step(*model, optimizer);
  }
}

void expect_same_model(LoadedNet& a, LoadedNet& b) {
  const auto values = b->named_parameters();
  for (const auto& one : a->named_parameters()) {
    EXPECT_TRUE(same_bits(one.value(), values[one.key()])) << one.key();
  }
  const auto states = b->named_buffers();
  for (const auto& one : a->named_buffers()) {
    EXPECT_TRUE(same_bits(one.value(), states[one.key()])) << one.key();
  }
}

std::filesystem::path saved(const std::filesystem::path& path, LoadedNet& model) {
  torch::save(model, path.string());
  return path;
}

TEST(LoadArchive, DenseWeightsBeginTheRecipesAgain) {
  for (const std::string recipe :
       {"s-ste", "sr-ste", "static+dense_head=0", "lbc", "t-sr-ste", "bi-mask"}) {
    for (const bool own : {false, true}) {
      for (const int steps : {0, 5}) {
        SCOPED_TRACE(fmt::format("{} own {} steps {}", recipe, own, steps));
        const ScratchFolder scratch;
        LoadedNet dense(2, own);
        const auto path = saved(scratch / "dense.pt", dense);
        LoadedNet model(1), fresh(2);
        sparsify(*model, loaded_config(recipe));
        torch::optim::SGD optimizer(model->parameters(), 0.1);
        train_loaded(model, optimizer, steps);
        EXPECT_EQ(load_archive(*model, path), kLoadedLayers);
        // From here on it is a model that was sparsified with these weights.
        sparsify(*fresh, loaded_config(recipe));
        expect_same_model(model, fresh);
        torch::optim::SGD fresh_optimizer(fresh->parameters(), 0.1);
        train_loaded(model, optimizer, 4);
        train_loaded(fresh, fresh_optimizer, 4);
        expect_same_model(model, fresh);
        EXPECT_EQ(layers_of(*model)[0].second->state().step, 4);
      }
    }
  }
}

TEST(LoadArchive, AStateIsLoadedWithItsWeights) {
  for (const std::string recipe : {"s-ste", "lbc", "dense"}) {
    const ScratchFolder scratch;
    LoadedNet model(1), other(2);
    for (LoadedNet* one : {&model, &other}) sparsify(**one, loaded_config(recipe));
    torch::optim::SGD optimizer(model->parameters(), 0.1), second(other->parameters(), 0.1);
    train_loaded(model, optimizer, 3);
    train_loaded(other, second, 1);
    const auto path = saved(scratch / "sparse.pt", model);
    EXPECT_EQ(load_archive(*other, path), std::vector<std::string>());
    expect_same_model(model, other);
    EXPECT_EQ(layers_of(*other)[0].second->state().step, 3);
    // torch's own takes it too, and reads it into a model that is not sparse.
    LoadedNet dense(3, false);
    torch::load(dense, path.string());
    EXPECT_TRUE(torch::equal(dense->fc->weight, model->named_parameters()["fc.weight"]));
  }
}

TEST(LoadArchive, DenseLayersHaveNothingToBeginAgain) {
  const ScratchFolder scratch;
  LoadedNet dense(2), model(1);
  const auto path = saved(scratch / "dense.pt", dense);
  SparsifyConfig config = loaded_config("ste");
  config.rules = {{"fc|attention.*", "dense"}};
  sparsify(*model, config);
  EXPECT_EQ(load_archive(*model, path), (std::vector<std::string>{"conv", "last"}));
  // weft's own layers say so themselves, also when torch loads them.
  Linear own(32, 8), sparse(32, 8);
  torch::save(own, (scratch / "own.pt").string());
  sparsify(*sparse, loaded_config("ste"));
  EXPECT_FALSE(sparse->began_again());
  torch::load(sparse, (scratch / "own.pt").string());
  EXPECT_TRUE(sparse->began_again());
  EXPECT_TRUE(torch::equal(sparse->weight, own->weight));
}

TEST(LoadArchive, WhatDoesNotFitIsRefusedInOneLine) {
  const ScratchFolder scratch;
  LoadedNet model(1);
  sparsify(*model, loaded_config("ste"));
  const auto refusal = [&](const std::filesystem::path& path) {
    const std::string message = message_of([&] { load_archive(*model, path); });
    EXPECT_TRUE(message.starts_with(path.string() + ": ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  };
  refusal(scratch / "none.pt");
  std::ofstream(scratch / "text.pt") << "no archive";
  refusal(scratch / "text.pt");
  torch::nn::Sequential other(torch::nn::Linear(4, 4));
  torch::save(other, (scratch / "other.pt").string());
  EXPECT_TRUE(contains(refusal(scratch / "other.pt"), "No such serialized submodule: 'fc'"));
  LoadedNet wide(2);
  wide->fc->weight.set_data(torch::randn({64, 16}));
  EXPECT_TRUE(contains(refusal(saved(scratch / "wide.pt", wide)),
                       "'fc': the weight has become [64, 16], the layer was made for 32 outputs "
                       "of 16 weights"));
  // Another recipe's state is no dense model.
  LoadedNet lbc(2);
  sparsify(*lbc, loaded_config("sr-ste"));
  EXPECT_TRUE(contains(refusal(saved(scratch / "sr-ste.pt", lbc)),
                       "the state of another recipe or pattern than ste at 2:4"));
  // The model is whole again: its layers of weft are where they were.
  EXPECT_EQ(layers_of(*model).size(), kLoadedLayers.size());
  const auto path = saved(scratch / "dense.pt", *std::make_unique<LoadedNet>(7));
  load_archive(*model, path);
  EXPECT_NO_THROW(model(torch::randn({5, 4, 16})));
}

// The same from a safetensors file.
TEST(LoadArchive, SafetensorsBeginTheRecipesAgain) {
  for (const std::string recipe : {"s-ste", "static+dense_head=0", "lbc"}) {
    SCOPED_TRACE(recipe);
    const ScratchFolder scratch;
    LoadedNet dense(2), model(1), fresh(2);
    export_model(scratch / "dense.safetensors", *dense);
    sparsify(*model, loaded_config(recipe));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    train_loaded(model, optimizer, 5);
    std::vector<std::string> notes;
    const auto note = [&](const std::string& line) { notes.push_back(line); };
    load_init(scratch / "dense.safetensors", *model, note);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_TRUE(contains(notes[0],
                         "'fc' and 4 more layers begin the recipe again with the weights of the "
                         "file"))
        << notes[0];
    sparsify(*fresh, loaded_config(recipe));
    torch::optim::SGD fresh_optimizer(fresh->parameters(), 0.1);
    train_loaded(model, optimizer, 4);
    train_loaded(fresh, fresh_optimizer, 4);
    expect_same_model(model, fresh);
    notes.clear();
    load_init(scratch / "dense.safetensors", *dense, note);
    EXPECT_TRUE(notes.empty()) << notes[0];
  }
}

}  // namespace
}  // namespace weft::test
