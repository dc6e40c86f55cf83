// sparsify and densify: which layers become sparse, why not the others, and what is left behind.
#include "weft/torch/sparsify.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <sstream>

#include "tests/support.h"
#include "weft/torch/conv2d.h"
#include "weft/torch/linear.h"
#include "weft/torch/step.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

SparsifyConfig config_of(const std::string& recipe) {
  SparsifyConfig config;
  config.recipe = recipe;
  config.total_steps = 20;
  config.planner = std::make_shared<Planner>(PlanMode::kSparse, "");
  return config;
}

torch::nn::Sequential make_sequential() {
  torch::manual_seed(1);
  return torch::nn::Sequential(
      torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)), torch::nn::ReLU(),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(1).groups(8)),
      torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 16, 3).stride(2)), torch::nn::Flatten(),
      torch::nn::Linear(16 * 9, 32), torch::nn::ReLU(), torch::nn::Linear(32, 10));
}

std::map<std::string, LayerReport> by_name(const std::vector<LayerReport>& reports) {
  std::map<std::string, LayerReport> found;
  for (const LayerReport& report : reports) found[report.name] = report;
  return found;
}

// A model as people write them: typed members, some of torch's layers and some of weft's, with
// inputs of two and of three dimensions.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(20, 16));
    first = register_module("first", Linear(16, 16));
    torchs = register_module("torchs", torch::nn::Linear(16, 16));
    middle = register_module("middle", Linear(16, 16));
    head = register_module("head", Linear(16, 20));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    return head(torch::relu(middle(torchs(first(embedding(tokens))))));
  }
  torch::nn::Embedding embedding{nullptr};
  Linear first{nullptr}, middle{nullptr}, head{nullptr};
  torch::nn::Linear torchs{nullptr};
};
TORCH_MODULE(Net);

TEST(Sparsify, SaysWhatHappenedToEveryLayerAndWhy) {
  torch::nn::Sequential model = make_sequential();
  auto reports = by_name(sparsify(*model, config_of("sr-ste")));
  ASSERT_EQ(reports.size(), 5u);
  EXPECT_EQ(reports["0"].recipe, "dense");
  EXPECT_EQ(reports["0"].reason, "the first layer");
  EXPECT_EQ(reports["0"].path, "packed");
  EXPECT_EQ(reports["2"].reason, "depthwise: one input per output");
  EXPECT_EQ(reports["3"].recipe, "sr-ste");
  EXPECT_EQ(reports["3"].pattern, "2:4");
  EXPECT_EQ(reports["3"].kind, "conv 8 -> 16, 9 taps");
  EXPECT_EQ(reports["5"].kind, "linear 144 -> 32");
  EXPECT_EQ(reports["7"].reason, "the last layer");
}

TEST(Sparsify, EveryLayerHasTheSettingsOfThePlan) {
  Net model;
  SparsifyConfig config = config_of("sr-ste");
  config.seed = 77;
  config.micro_batches = 3;
  config.replica = 1;
  config.replicas = 2;
  config.force_plain = true;
  config.telemetry = true;
  config.precision = Precision::kBf16;
  const std::vector<LayerReport> reports = sparsify(*model, config);
  for (const auto& [name, layer] : layers_of(*model)) {
    const LayerSettings& settings = layer->settings();
    EXPECT_EQ(settings.label, name);
    EXPECT_EQ(reports.at(static_cast<size_t>(settings.number)).name, name);
    EXPECT_EQ(settings.seed, 77u);
    EXPECT_EQ(settings.micro_batches, 3);
    EXPECT_EQ(settings.replica, 1);
    EXPECT_EQ(settings.replicas, 2);
    EXPECT_EQ(settings.total_steps, config.total_steps);
    EXPECT_TRUE(settings.force_plain);
    EXPECT_TRUE(settings.telemetry);
    EXPECT_EQ(settings.precision, Precision::kBf16);
    EXPECT_EQ(settings.planner, config.planner);
  }
}

TEST(Sparsify, RulesComeBeforeDefaults) {
  SparsifyConfig config = config_of("dense");
  config.rules = {{"0", "ste", Pattern(2, 4)},
                  {"[57]", "bi-mask", Pattern(1, 4)},
                  {".*", "static", Pattern(4, 8)}};
  torch::nn::Sequential model = make_sequential();
  auto reports = by_name(sparsify(*model, config));
  EXPECT_EQ(reports["0"].recipe, "dense");
  EXPECT_EQ(reports["0"].reason, "too narrow: 3 inputs for groups of 4");
  EXPECT_EQ(reports["7"].recipe, "bi-mask");  // a rule, so no default for the last layer
  EXPECT_EQ(reports["7"].pattern, "1:4");
  EXPECT_EQ(reports["7"].reason, "rule '[57]'");
  EXPECT_EQ(reports["3"].pattern, "4:8");
}

TEST(Sparsify, ReachesLayersWhereverTheyAreHeld) {
  Net model;
  const auto members = model->parameters();
  auto reports = by_name(sparsify(*model, config_of("sr-ste")));
  EXPECT_EQ(reports["embedding"].reason, "an embedding: no product");
  EXPECT_EQ(reports["embedding"].path, "torch");
  EXPECT_EQ(reports["first"].reason,
            "the recipe of the config");  // the embedding is the first layer
  EXPECT_EQ(reports["torchs"].recipe, "sr-ste");
  EXPECT_EQ(reports["torchs"].path, "packed");
  EXPECT_EQ(reports["middle"].recipe, "sr-ste");
  EXPECT_EQ(model->parameters().size(), members.size());
  EXPECT_EQ(model->middle->settings().pattern, Pattern(2, 4));
  EXPECT_EQ(reports["head"].reason, "the last layer");
}

TEST(Sparsify, ATypedTorchLayerComputesByItsRecipe) {
  for (const std::vector<int64_t>& tokens : {std::vector<int64_t>{7}, {2, 7}}) {
    Net model;
    sparsify(*model, config_of("sr-ste"));
    torch::Tensor x =
        torch::randn({16}).expand({tokens[0], tokens.size() == 2 ? tokens[1] : 1, 16});
    x = torch::randn_like(tokens.size() == 1 ? x.squeeze(1) : x).requires_grad_(true);
    const torch::Tensor y = model->torchs(x);
    const auto layer = layers_of(*model)[1].second;
    ASSERT_TRUE(layer->state().sparse());
    const torch::Tensor bias = model->named_parameters()["torchs.bias"];
    const torch::Tensor expected = torch::matmul(x.detach(), layer->effective_weight().t()) + bias;
    EXPECT_TRUE(torch::allclose(y, expected, 1e-4, 1e-5));
    y.backward(torch::ones_like(y));
    EXPECT_TRUE(
        torch::allclose(bias.grad(), torch::full({16}, static_cast<double>(y.numel()) / 16.0)));
    EXPECT_TRUE(model->named_parameters()["torchs.weight"].grad().defined());
    EXPECT_TRUE(torch::allclose(
        x.grad(), torch::matmul(torch::ones_like(y), layer->effective_weight()), 1e-4, 1e-5));
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(torch::allclose(model->torchs(x.detach().clone()), expected, 1e-4, 1e-5));
    }
  }
}

TEST(Sparsify, ReachesIntoAttention) {
  torch::nn::MultiheadAttention attention(16, 2);
  SparsifyConfig config = config_of("ste");
  config.first_and_last_dense = false;
  auto reports = by_name(sparsify(*attention, config));
  EXPECT_EQ(reports["out_proj"].recipe, "ste");
  EXPECT_EQ(reports["in_proj"].recipe, "ste");
  const torch::Tensor x = torch::randn({5, 3, 16}).requires_grad_(true);
  const torch::Tensor y = std::get<0>(attention->forward(x, x, x));
  y.sum().backward();
  for (const auto& [name, layer] : layers_of(*attention)) EXPECT_TRUE(layer->state().sparse());
  EXPECT_TRUE(attention->named_parameters()["out_proj.weight"].grad().defined());
  EXPECT_TRUE(x.grad().defined());
}

TEST(Sparsify, TheStandInIsForMultiplyingOnly) {
  Net model;
  sparsify(*model, config_of("sr-ste"));
  EXPECT_EQ(model->torchs->weight.sizes(), (std::vector<int64_t>{16, 16}));
  EXPECT_TRUE(contains(message_of([&] { model->torchs->weight.abs(); }),
                       "only products with it are defined"));
}

TEST(Sparsify, KeepsParametersAndTheirNames) {
  torch::nn::Sequential model = make_sequential();
  const auto before = model->named_parameters();
  sparsify(*model, config_of("sr-ste"));
  const auto after = model->named_parameters();
  ASSERT_EQ(before.size(), after.size());
  for (const auto& parameter : before) {
    ASSERT_TRUE(after.contains(parameter.key())) << parameter.key();
    EXPECT_TRUE(after[parameter.key()].is_same(parameter.value()));
  }
  sparsify(*model, config_of("lbc"));
  EXPECT_TRUE(model->named_parameters().contains("5.weft.scores"));
  sparsify(*model, config_of("ste"));
  EXPECT_FALSE(model->named_parameters().contains("5.weft.scores"));
}

TEST(Sparsify, RefusesConfigsThatMakeNoSenseAndChangesNothing) {
  torch::nn::Sequential model = make_sequential();
  SparsifyConfig config = config_of("sr-ste");
  config.rules = {{"(", "ste", Pattern(2, 4)}};
  EXPECT_TRUE(contains(message_of([&] { sparsify(*model, config); }), "not a regular expression"));
  config.rules = {{"5", "ste+gradient=masked", Pattern(2, 4)}};
  EXPECT_TRUE(contains(message_of([&] { sparsify(*model, config); }), "is not valid"));
  config = config_of("lbc");
  config.total_steps = 0;
  EXPECT_TRUE(contains(message_of([&] { sparsify(*model, config); }), "total_steps"));
  config = config_of("ste");
  config.micro_batches = 0;
  EXPECT_TRUE(contains(message_of([&] { sparsify(*model, config); }), "0 micro-batches"));
  EXPECT_EQ(model->ptr(5)->children().size(), 0u);
}

TEST(Sparsify, ASparseModelTrainsSavesAndLoads) {
  torch::nn::Sequential model = make_sequential();
  sparsify(*model, config_of("s-ste"));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const torch::Tensor x = torch::randn({4, 3, 8, 8}), target = torch::randn({4, 10});
  const auto train_step = [&] {
    optimizer.zero_grad();
    const torch::Tensor loss = torch::mse_loss(model->forward(x), target);
    loss.backward();
    step(*model, optimizer);
    return loss.item<double>();
  };
  const double first = train_step();
  for (int i = 0; i < 10; ++i) train_step();
  EXPECT_LT(train_step(), first);
  std::stringstream stream;
  torch::save(model, stream);
  torch::nn::Sequential other = make_sequential();
  sparsify(*other, config_of("s-ste"));
  torch::load(other, stream);
  model->eval();
  other->eval();
  EXPECT_TRUE(torch::equal(model->forward(x), other->forward(x)));
}

// Every way in which two modules come to read one weight.
struct TiedImpl : torch::nn::Module {
  explicit TiedImpl(const std::string& tie) {
    torch::manual_seed(3);
    embedding = register_module("embedding", torch::nn::Embedding(20, 16));
    a = register_module("a", torch::nn::Linear(16, 16));
    own = register_module("own", Linear(16, 16));
    b = register_module("b", torch::nn::Linear(16, 16));
    own_b = register_module("own_b", Linear(16, 16));
    head = register_module("head", torch::nn::Linear(16, 20));
    last = register_module("last", torch::nn::Linear(20, 8));
    if (tie == "member") b->weight = a->weight;
    if (tie == "set_data") b->weight.set_data(a->weight);
    if (tie == "view") b->weight = a->weight.narrow(0, 0, 16);
    if (tie == "transposed") b->weight = a->weight.t();
    if (tie == "own") own_b->weight = own->weight;
    if (tie == "mixed") own->weight = b->weight;
    if (tie == "embedding") head->weight = embedding->weight;
    if (tie == "embedding set_data") embedding->weight.set_data(head->weight);
    if (tie == "buffer") register_buffer("shown", a->weight.detach());
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const torch::Tensor x = torch::relu(own(torch::relu(a(embedding(tokens)))));
    return last(head(own_b(torch::relu(b(x)))));
  }
  torch::nn::Embedding embedding{nullptr};
  torch::nn::Linear a{nullptr}, b{nullptr}, head{nullptr}, last{nullptr};
  Linear own{nullptr}, own_b{nullptr};
};
TORCH_MODULE(Tied);

TEST(Densify, OfTiedWeightsChangesNothing) {
  using Names = std::map<std::string, std::string>;
  const std::map<std::string, Names> ties = {
      {"none", {}},
      {"member", {{"a", "b.weight"}, {"b", "a.weight"}}},
      {"set_data", {{"a", "b.weight"}, {"b", "a.weight"}}},
      {"view", {{"a", "b.weight"}, {"b", "a.weight"}}},
      {"transposed", {{"a", "b.weight"}, {"b", "a.weight"}}},
      {"own", {{"own", "own_b.weight"}, {"own_b", "own.weight"}}},
      {"mixed", {{"own", "b.weight"}, {"b", "own.weight"}}},
      {"embedding", {{"head", "embedding.weight"}}},
      {"embedding set_data", {{"head", "embedding.weight"}}},
      {"buffer", {{"a", "shown"}}},
  };
  for (const auto& [tie, names] : ties) {
    for (const char* recipe : {"s-ste", "sr-ste", "bi-mask"}) {
      SCOPED_TRACE(tie + " " + recipe);
      Tied model(tie);
      sparsify(*model, config_of(recipe));  // twice: attached layers are looked through
      for (const auto& [name, report] : by_name(sparsify(*model, config_of(recipe)))) {
        if (names.contains(name)) {
          EXPECT_EQ(report.recipe, "dense") << name;
          EXPECT_EQ(report.reason, "tied: shares its weight with " + names.at(name));
        } else if (name != "embedding" && name != "last") {
          EXPECT_EQ(report.recipe, recipe) << name;
        }
      }
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));
      const torch::Tensor tokens = torch::arange(12), target = torch::randn({12, 8});
      for (int i = 0; i < 4; ++i) {
        optimizer.zero_grad();
        torch::mse_loss(model->forward(tokens), target).backward();
        step(*model, optimizer);
      }
      const torch::Tensor before = model->forward(tokens).detach();
      densify(*model);
      EXPECT_TRUE(torch::allclose(model->forward(tokens), before, 1e-4, 1e-5))
          << (model->forward(tokens) - before).abs().max().item<double>() << " of "
          << before.abs().max().item<double>();
      // What was tied still is.
      const auto address = [](const auto& module) { return module->weight.data_ptr(); };
      EXPECT_EQ(address(model->a) == address(model->b),
                tie == "member" || tie == "set_data" || tie == "view" || tie == "transposed");
      EXPECT_EQ(address(model->own) == address(model->own_b), tie == "own");
      EXPECT_EQ(address(model->own) == address(model->b), tie == "mixed");
      EXPECT_EQ(address(model->head) == address(model->embedding), tie.starts_with("embedding"));
    }
  }
}

// Weights side by side in one buffer share its storage, and no element.
TEST(Sparsify, WeightsThatOnlyLieSideBySideAreNotTied) {
  torch::nn::Sequential model(torch::nn::Linear(16, 16), torch::nn::Linear(16, 16),
                              torch::nn::Linear(16, 16), torch::nn::Linear(16, 4));
  const torch::Tensor flat = torch::randn({2 * 256});
  for (const int i : {1, 2}) {
    model->ptr<torch::nn::LinearImpl>(static_cast<size_t>(i))
        ->weight.set_data(flat.narrow(0, 256 * (i - 1), 256).view({16, 16}));
  }
  auto reports = by_name(sparsify(*model, config_of("sr-ste")));
  EXPECT_EQ(reports["1"].recipe, "sr-ste") << reports["1"].reason;
  EXPECT_EQ(reports["2"].recipe, "sr-ste") << reports["2"].reason;
}

TEST(Densify, LeavesPlainLayersWithSparseWeights) {
  torch::nn::Sequential model = make_sequential();
  sparsify(*model, config_of("transposable"));
  const torch::Tensor x = torch::randn({4, 3, 8, 8});
  const torch::Tensor before = model->forward(x).detach();
  densify(*model);
  EXPECT_EQ(layers_of(*model).size(), 0u);
  const torch::Tensor weight = model->ptr(5)->as<torch::nn::Linear>()->weight;
  EXPECT_EQ(weight.ne(0).sum().item<int64_t>(), weight.numel() / 2);
  EXPECT_TRUE(weight.requires_grad());
  EXPECT_TRUE(torch::allclose(model->forward(x), before, 1e-4, 1e-5));
  EXPECT_EQ(model->named_parameters().size(), 10u);
  EXPECT_TRUE(model->named_parameters()["5.weight"].is_same(weight));
}

TEST(Densify, KeepsWeftLayersOfTypedModelsDense) {
  Net model;
  sparsify(*model, config_of("ste"));
  const torch::Tensor tokens = torch::arange(8);
  const torch::Tensor before = model->forward(tokens).detach();
  densify(*model);
  EXPECT_TRUE(model->middle->always_dense());
  EXPECT_EQ(model->middle->weight.ne(0).sum().item<int64_t>(), 128);
  EXPECT_TRUE(torch::allclose(model->forward(tokens), before, 1e-4, 1e-5));
}

}  // namespace
}  // namespace weft
