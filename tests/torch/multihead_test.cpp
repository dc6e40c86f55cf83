// torch's attention modules under sparsify: the projections of q, k and v train by a recipe.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <map>
#include <sstream>

#include "tests/layers.h"
#include "tests/scratch_folder.h"
#include "tests/support.h"
#include "weft/prune/check_checkpoint.h"
#include "weft/torch/export_model.h"
#include "weft/torch/sparsify.h"

namespace weft::test {
namespace {

using torch::nn::MultiheadAttention;
using torch::nn::MultiheadAttentionOptions;

constexpr int64_t kHeads = 2;

SparsifyConfig attention_config(const std::string& recipe, const std::string& pattern = "2:4") {
  SparsifyConfig config;
  config.recipe = recipe;
  config.pattern = Pattern::parse(pattern);
  config.total_steps = 12;
  config.first_and_last_dense = false;
  config.planner = std::make_shared<Planner>(PlanMode::kSparse, "");
  return config;
}

// The weights of `from` in `to`, which is dense; of sparse layers those that they multiply with.
void copy_effective(torch::nn::Module& from, torch::nn::Module& to) {
  const torch::NoGradGuard no_grad;
  std::map<std::string, torch::Tensor> effective;
  for (const auto& [name, layer] : layers_of(from)) {
    effective[weight_name(name, *layer)] = layer->effective_weight();
  }
  const auto values = from.named_parameters();
  for (auto& one : to.named_parameters()) {
    const auto found = effective.find(one.key());
    one.value().copy_(found == effective.end() ? values[one.key()] : found->second);
  }
}

// How attention is used: by one sequence on itself, on another one, or with keys and values that
// differ, of the same or of other widths.
enum class Use { kSelf, kMemory, kApart, kWidths };

struct AttentionCase {
  Use use;
  int64_t width;
  bool bias;

  MultiheadAttentionOptions options() const {
    MultiheadAttentionOptions options(width, kHeads);
    options.bias(bias);
    if (use == Use::kWidths) options.kdim(24).vdim(24);
    return options;
  }
  // q, k, v: [tokens, batch, width]
  std::vector<torch::Tensor> inputs() const {
    torch::manual_seed(11);
    const int64_t memory = use == Use::kWidths ? 24 : width;  // libtorch wants equal ones
    const torch::Tensor q = torch::randn({5, 3, width}), k = torch::randn({7, 3, memory}),
                        v = torch::randn({7, 3, memory});
    if (use == Use::kSelf) return {q};
    if (use == Use::kMemory) return {q, k};
    return {q, k, v};
  }
  std::string str() const {
    return fmt::format("use {}, width {}{}", static_cast<int>(use), width, bias ? ", bias" : "");
  }
};

std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> all;
  for (const Use use : {Use::kSelf, Use::kMemory, Use::kApart, Use::kWidths}) {
    for (const int64_t width : {16, 18}) all.push_back({use, width, width == 16});
  }
  return all;
}

struct Attended {
  torch::Tensor y, weights;
  std::map<std::string, torch::Tensor> gradients;  // of parameters, and of inputs by number
};

Attended attend(MultiheadAttention& module, const AttentionCase& one) {
  std::vector<torch::Tensor> in = one.inputs();
  for (torch::Tensor& x : in) x.requires_grad_(true);
  module->zero_grad();
  Attended found;
  std::tie(found.y, found.weights) =
      module->forward(in[0], in[in.size() > 1 ? 1 : 0], in[in.size() - 1]);
  torch::manual_seed(12);
  found.y.backward(torch::randn_like(found.y));
  for (const auto& parameter : module->named_parameters()) {
    found.gradients[parameter.key()] = parameter.value().grad().clone();
  }
  for (size_t i = 0; i < in.size(); ++i) found.gradients[std::to_string(i)] = in[i].grad();
  return found;
}

TEST(SparseAttention, ComputesAsTheDensifiedOne) {
  for (const AttentionCase& one : attention_cases()) {
    for (const std::string recipe : {"ste", "transposable", "static+dense_head=0", "lbc"}) {
      for (const bool plain : {false, true}) {
        SCOPED_TRACE(one.str() + " " + recipe + (plain ? " plain" : ""));
        torch::manual_seed(3);
        MultiheadAttention sparse(one.options()), dense(one.options());
        const auto names = sparse->named_parameters().keys();
        SparsifyConfig config = attention_config(recipe);
        config.force_plain = plain;
        sparsify(*sparse, config);
        if (recipe != "lbc") {
          EXPECT_EQ(sparse->named_parameters().keys(), names);
        }
        {
          const torch::NoGradGuard no_grad;
          auto values = sparse->named_parameters();
          for (auto& p : dense->named_parameters()) p.value().copy_(values[p.key()]);
        }
        const Attended of_dense = attend(dense, one);
        for (const bool training : {true, false}) {
          sparse->train(training);
          const Attended found = attend(sparse, one);
          copy_effective(*sparse, *dense);
          dense->train(training);
          const Attended expected = attend(dense, one);
          EXPECT_LT(difference(found.y, expected.y), 1e-5);
          EXPECT_LT(difference(found.weights, expected.weights), 1e-5);
          if (recipe != "lbc") {  // which begins with all
            EXPECT_GT(difference(found.y, of_dense.y), 1e-2);
          }
          for (const auto& [name, gradient] : expected.gradients) {
            torch::Tensor want = gradient;
            if (recipe.starts_with("static") || recipe == "lbc") {
              // Only what the mask keeps has a gradient.
              for (const auto& [layer_name, layer] : layers_of(*sparse)) {
                if (weight_name(layer_name, *layer) != name) continue;
                want = gradient * layer->effective_weight().ne(0).to(torch::kFloat);
              }
            }
            ASSERT_TRUE(found.gradients.contains(name)) << name;
            EXPECT_LT(difference(found.gradients.at(name), want), 1e-5) << name;
          }
        }
      }
    }
  }
}

TEST(SparseAttention, ItsProductsRunOnTheKernels) {
  for (const AttentionCase& one : attention_cases()) {
    SCOPED_TRACE(one.str());
    MultiheadAttention module(one.options());
    const auto reports = sparsify(*module, attention_config("sr-ste"));
    ASSERT_EQ(reports.size(), one.use == Use::kWidths ? 4u : 2u);
    attend(module, one);
    for (const auto& [name, layer] : layers_of(*module)) {
      const LayerTelemetry t = layer->telemetry();
      EXPECT_EQ(t.plan_text(), "sparse/sparse/dense") << name;
      EXPECT_GT(t.times.pack, 0.0) << name;
      for (const Product product : kProducts) {
        EXPECT_GT(t.times.products[static_cast<size_t>(product)], 0.0) << name;
      }
      EXPECT_EQ(t.forward_density, layer->weight_shape().ins == 18 ? t.forward_density : 0.5);
    }
  }
}

TEST(SparseAttention, TheReportNamesProjectionsAndWeights) {
  const auto names = [](torch::nn::Module& model) {
    std::vector<std::string> found;
    for (const LayerReport& one : sparsify(model, attention_config("ste"))) {
      EXPECT_EQ(one.recipe, "ste") << one.reason;
      EXPECT_TRUE(model.named_parameters().contains(one.weight)) << one.weight;
      found.push_back(fmt::format("{} ({}): {}", one.name, one.weight, one.kind));
    }
    for (const auto& [name, layer] : layers_of(model)) {
      EXPECT_EQ(layer->settings().label, name);
      EXPECT_TRUE(layer_of_weight(weight_name(name, *layer)) == name);
    }
    return found;
  };
  using Names = std::vector<std::string>;
  torch::nn::TransformerEncoderLayer encoder(
      torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32));
  EXPECT_EQ(names(*encoder),
            (Names{"self_attn.in_proj (self_attn.in_proj_weight): linear 16 -> 48",
                   "self_attn.out_proj (self_attn.out_proj.weight): linear 16 -> 16",
                   "linear1 (linear1.weight): linear 16 -> 32",
                   "linear2 (linear2.weight): linear 32 -> 16"}));
  MultiheadAttention widths(AttentionCase{Use::kWidths, 16, true}.options());
  EXPECT_EQ(names(*widths), (Names{"q_proj (q_proj_weight): linear 16 -> 16",
                                   "k_proj (k_proj_weight): linear 24 -> 16",
                                   "v_proj (v_proj_weight): linear 24 -> 16",
                                   "out_proj (out_proj.weight): linear 16 -> 16"}));
}

// As people have them: a stack of encoder layers, and a decoder that attends to what they made.
struct SequenceNetImpl : torch::nn::Module {
  SequenceNetImpl() {
    torch::manual_seed(5);
    const auto encoder_layer =
        torch::nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0.0);
    encoder = register_module(
        "encoder", torch::nn::TransformerEncoder(
                       torch::nn::TransformerEncoderOptions(encoder_layer, /*num_layers=*/2)));
    decoder = register_module(
        "decoder",
        torch::nn::TransformerDecoderLayer(
            torch::nn::TransformerDecoderLayerOptions(16, 2).dim_feedforward(32).dropout(0.0)));
  }
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& target) {
    return decoder(target, encoder(x));
  }
  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::TransformerDecoderLayer decoder{nullptr};
};
TORCH_MODULE(SequenceNet);

struct SequenceBatch {
  torch::Tensor x, target;
};
SequenceBatch sequence_batch(uint64_t seed) {
  torch::manual_seed(seed);
  return {torch::randn({7, 3, 16}), torch::randn({5, 3, 16})};
}

void train_sequences(SequenceNet& model, torch::optim::Optimizer& optimizer, int from, int to) {
  for (int i = from; i < to; ++i) {
    const SequenceBatch batch = sequence_batch(static_cast<uint64_t>(100 + i));
    optimizer.zero_grad();
    torch::mse_loss(model(batch.x, batch.target), batch.target.flip(0)).backward();
    step(*model, optimizer);
  }
}

TEST(SparseAttention, EncodersAndDecodersTrainAndDensify) {
  for (const std::string recipe :
       {"s-ste", "sr-ste", "transposable", "bi-mask", "lbc", "t-sr-ste"}) {
    SCOPED_TRACE(recipe);
    SequenceNet model;
    const size_t modules = model->modules().size();
    const auto names = model->named_parameters().keys();
    for (const LayerReport& one : sparsify(*model, attention_config(recipe))) {
      EXPECT_EQ(one.recipe, recipe) << one.name << ": " << one.reason;
    }
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
    train_sequences(model, optimizer, 0, 6);
    const SequenceBatch batch = sequence_batch(9);
    for (const bool training : {true, false}) {
      model->train(training);
      const torch::Tensor y = model(batch.x, batch.target);
      SequenceNet dense;
      copy_effective(*model, *dense);
      EXPECT_LT(difference(y, dense(batch.x, batch.target)), 1e-5);
    }
    const torch::Tensor before = model(batch.x, batch.target).detach();
    densify(*model);
    EXPECT_LT(difference(model(batch.x, batch.target), before), 1e-5);
    EXPECT_EQ(model->modules().size(), modules);
    EXPECT_EQ(model->named_parameters().keys(), names);
    const auto attention = model->decoder->multihead_attn;
    EXPECT_TRUE(attention->in_proj_weight.is_same(attention->named_parameters()["in_proj_weight"]));
    EXPECT_EQ(layers_of(*model).size(), 0u);
  }
}

TEST(SparseAttention, StateIsSavedAndLoaded) {
  for (const std::string recipe : {"s-ste", "sr-ste", "lbc"}) {
    SCOPED_TRACE(recipe);
    SequenceNet whole, halves;
    for (SequenceNet* one : {&whole, &halves}) sparsify(**one, attention_config(recipe));
    torch::optim::SGD optimizer(whole->parameters(), 0.1);
    train_sequences(whole, optimizer, 0, 4);
    std::stringstream stream;
    torch::save(whole, stream);
    torch::load(halves, stream);
    train_sequences(whole, optimizer, 4, 8);
    torch::optim::SGD second(halves->parameters(), 0.1);
    train_sequences(halves, second, 4, 8);
    const auto values = halves->named_parameters();
    for (const auto& one : whole->named_parameters()) {
      EXPECT_TRUE(same_bits(one.value(), values[one.key()])) << one.key();
    }
    const auto states = halves->named_buffers();
    for (const auto& one : whole->named_buffers()) {
      EXPECT_TRUE(same_bits(one.value(), states[one.key()])) << one.key();
    }
    EXPECT_TRUE(states.contains("decoder.multihead_attn.weft.in_proj.mask"));
  }
}

TEST(SparseAttention, TheFileOfTheModelHasItsSparsity) {
  for (const std::string recipe : {"sr-ste", "transposable"}) {
    const ScratchFolder scratch;
    SequenceNet model;
    const auto reports = sparsify(*model, attention_config(recipe));
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    train_sequences(model, optimizer, 0, 3);
    export_model(scratch / "model.safetensors", *model);
    CheckOptions check;
    check.file = scratch / "model.safetensors";
    const CheckReport report = check_checkpoint(check);
    EXPECT_TRUE(report.valid());
    EXPECT_EQ(report.tensors.size(), reports.size());
    const Sparsity promised = Checkpoint::open(check.file).sparsity();
    EXPECT_TRUE(promised.tensors.contains("encoder.layers.0.self_attn.in_proj_weight"));
    EXPECT_TRUE(promised.tensors.contains("decoder.multihead_attn.in_proj_weight"));
  }
}

TEST(SparseAttention, RulesAndTiesReachProjections) {
  SequenceNet model;
  SparsifyConfig config = attention_config("ste");
  config.rules = {{".*multihead_attn\\.in_proj", "dense"},
                  {".*self_attn\\..*", "sr-ste", Pattern(1, 4)}};
  // Typed members that are changed after they were made read the memory of others.
  auto layers = model->encoder->layers;
  auto* a = layers[0]->as<torch::nn::TransformerEncoderLayer>();
  auto* b = layers[1]->as<torch::nn::TransformerEncoderLayer>();
  b->self_attn->in_proj_weight = a->self_attn->in_proj_weight;
  for (const LayerReport& one : sparsify(*model, config)) {
    if (one.name == "decoder.multihead_attn.in_proj") {
      EXPECT_EQ(one.recipe, "dense");
      EXPECT_EQ(one.path, "packed");
    } else if (one.name.ends_with("0.self_attn.in_proj")) {
      EXPECT_EQ(one.reason,
                "tied: shares its weight with encoder.layers.1.self_attn.in_proj_weight");
    } else if (one.name.ends_with("1.self_attn.in_proj")) {
      EXPECT_EQ(one.reason,
                "tied: shares its weight with encoder.layers.0.self_attn.in_proj_weight");
    } else {
      EXPECT_EQ(one.recipe, one.name.find("self_attn") == std::string::npos ? "ste" : "sr-ste")
          << one.name;
    }
  }
  MultiheadAttention widths(MultiheadAttentionOptions(16, 2).kdim(24).vdim(24));
  widths->v_proj_weight = widths->k_proj_weight;
  std::map<std::string, std::string> reasons;
  for (const LayerReport& one : sparsify(*widths, attention_config("ste"))) {
    reasons[one.name] = one.reason;
  }
  EXPECT_EQ(reasons["k_proj"], "tied: shares its weight with v_proj_weight");
  EXPECT_EQ(reasons["q_proj"], "the recipe of the config");
}

TEST(SparseAttention, WorksInBf16) {
  torch::nn::TransformerEncoderLayer layer(
      torch::nn::TransformerEncoderLayerOptions(32, 2).dim_feedforward(64).dropout(0.0));
  SparsifyConfig config = attention_config("sr-ste");
  const torch::Tensor x = torch::randn({6, 2, 32});
  sparsify(*layer, config);
  const torch::Tensor wide = layer(x);
  config.precision = Precision::kBf16;
  sparsify(*layer, config);
  const torch::Tensor narrow = layer(x);
  EXPECT_LT(difference(narrow, wide), 0.05);
  EXPECT_GT(difference(narrow, wide), 0.0);
  narrow.sum().backward();
  EXPECT_TRUE(layer->named_parameters()["self_attn.in_proj_weight"].grad().defined());
}

TEST(SparseAttention, OtherSlicesOfTheStandInAreRefused) {
  MultiheadAttention module(16, 2);
  sparsify(*module, attention_config("ste"));
  const torch::Tensor w = module->in_proj_weight;
  EXPECT_EQ(w.slice(0, 16).sizes(), (std::vector<int64_t>{32, 16}));
  EXPECT_EQ(w.slice(0, -16, 100).sizes(), (std::vector<int64_t>{16, 16}));
  EXPECT_EQ(w.slice(0, 16).slice(0, 8, 12).sizes(), (std::vector<int64_t>{4, 16}));
  for (const auto& action : std::vector<std::function<void()>>{
           [&] { w.slice(1, 0, 8); }, [&] { w.slice(0, 0, 8, 2); }, [&] { w.abs(); }}) {
    EXPECT_TRUE(contains(message_of(action), "densify the model first"));
  }
}

}  // namespace
}  // namespace weft::test
