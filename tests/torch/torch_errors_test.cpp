// What does not fit is refused in one line that names the layer, not with libtorch's page of frames.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/layers.h"
#include "tests/support.h"
#include "weft/torch/attention.h"
#include "weft/torch/bf16_functions.h"
#include "weft/torch/model.h"
#include "weft/torch/sparsify.h"

namespace weft::test {
namespace {

struct RefusedNetImpl : torch::nn::Module {
  RefusedNetImpl() {
    register_module("fc1", fc1);
    register_module("conv", conv);
    register_module("own", own);
    register_module("attention", attention);
  }
  torch::nn::Linear fc1{16, 32};
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(8, 16, 3)};
  Linear own{16, 32};
  torch::nn::MultiheadAttention attention{16, 2};
};
TORCH_MODULE(RefusedNet);

RefusedNet refused_net() {
  RefusedNet net;
  SparsifyConfig config;
  config.recipe = "sr-ste";
  config.first_and_last_dense = false;
  config.planner = std::make_shared<Planner>(PlanMode::kSparse, "");
  sparsify(*net, config);
  return net;
}

std::string one_line(const std::function<void()>& action) {
  std::string message = message_of([&] {
    try {
      action();
    } catch (const c10::Error& error) {
      FAIL() << "libtorch's: " << error.what();
    }
  });
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(TorchErrors, InputsAreHeldAgainstTheLayerByName) {
  RefusedNet net = refused_net();
  const auto of = [&](auto& module, const torch::Tensor& x) {
    return one_line([&] { module->forward(x); });
  };
  const std::string features = " for a layer 16 -> 32: accepted is [..., 16]";
  EXPECT_EQ(of(net->fc1, torch::randn({8, 15})), "'fc1': an input of [8, 15]" + features);
  EXPECT_EQ(of(net->own, torch::randn({2, 8, 15})), "'own': an input of [2, 8, 15]" + features);
  EXPECT_EQ(of(net->own, torch::tensor(1.0f)), "'own': an input of []" + features);
  EXPECT_EQ(of(net->own, torch::Tensor()), "'own': an input of undefined" + features);
  EXPECT_EQ(of(net->conv, torch::randn({2, 7, 9, 9})),
            "'conv': an input of [2, 7, 9, 9] for a convolution 8 -> 16: accepted is [images, 8, "
            "height, width]");
  EXPECT_TRUE(contains(of(net->conv, torch::randn({8, 9, 9})), "'conv': an input of [8, 9, 9]"));
  const std::string small = of(net->conv, torch::randn({1, 8, 2, 2}));
  EXPECT_TRUE(small.starts_with("'conv': convolution 1x8x2x2")) << small;
  EXPECT_TRUE(contains(small, "the kernel spans 3 x 3 pixels")) << small;
  for (const auto& type : {torch::kDouble, torch::kLong, torch::kHalf}) {
    const std::string message = of(net->fc1, torch::ones({8, 16}, type));
    EXPECT_EQ(message, fmt::format("'fc1': an input of {} on cpu for weights of Float on cpu",
                                   c10::toString(type)));
  }
  EXPECT_EQ(of(net->own, torch::ones({8, 16}, torch::kMeta)),
            "'own': an input of Float on meta for weights of Float on cpu");
  const torch::Tensor q = torch::randn({5, 2, 16}), k = torch::randn({5, 2, 12});
  const auto attend = [&](const torch::Tensor& key) {
    return one_line([&] { net->attention->forward(q, key, key); });
  };
  EXPECT_EQ(attend(k),
            "'attention.in_proj': an input of [5, 2, 12] for a layer 16 -> 48: accepted is [..., "
            "16]");
  // Without sparsify a layer has no name.
  EXPECT_TRUE(one_line([] {
                Linear(16, 32)->forward(torch::ones({2, 3}));
              }).starts_with("linear: an input of [2, 3]"));
}

TEST(TorchErrors, WhatTorchCannotComputeIsOneLine) {
  RefusedNet net = refused_net();
  net->fc1->to(torch::kHalf);
  const std::string message = one_line([&] {
    net->fc1->forward(torch::ones({2, 16}, torch::kHalf));
  });
  // libtorch 2 can.
  EXPECT_TRUE(message == "(no Error)" || message.starts_with("'fc1': libtorch: \"addmm"))
      << message;
  // An input that was written to after the forward pass.
  torch::Tensor x = torch::randn({2, 16});
  x.requires_grad_(true);
  torch::Tensor h = x * 1.0;
  const torch::Tensor y = net->own->forward(h);
  h.add_(1.0);
  const std::string changed = one_line([&] { y.sum().backward(); });
  EXPECT_TRUE(changed.starts_with("'own': libtorch: one of the variables")) << changed;
}

TEST(TorchErrors, WeightsThatHaveBecomeOthersAreSeen) {
  RefusedNet net = refused_net();
  const torch::Tensor x = torch::randn({2, 16});
  net->fc1->forward(x);
  net->own->weight.set_data(torch::randn({64, 16}));
  EXPECT_EQ(one_line([&] { net->own->forward(x); }),
            "'own': the weight has become [64, 16], the layer was made for 32 outputs of 16 "
            "weights");
  RefusedNet other = refused_net();
  other->own->bias.set_data(torch::randn({64}));
  EXPECT_EQ(one_line([&] { other->own->forward(x); }),
            "'own': the bias has become [64], the layer has 32 outputs");
  {
    const torch::NoGradGuard no_grad;
    net->named_parameters()["fc1.weight"].add_(1.0);
  }
  EXPECT_TRUE(one_line([&] {
                net->fc1->forward(x);
              }).starts_with("the weights of 'fc1' changed outside weft::step()"));
}

TEST(TorchErrors, LayersThatCannotBeAreRefused) {
  EXPECT_EQ(one_line([] { Linear(0, 4); }),
            "a linear layer of 0 inputs and 4 outputs: there must be at least one of each");
  EXPECT_EQ(one_line([] { Linear(4, -1); }),
            "a linear layer of 4 inputs and -1 outputs: there must be at least one of each");
  const auto conv = [](const torch::nn::Conv2dOptions& options) {
    return one_line([&] { Conv2d layer(options); });
  };
  using Options = torch::nn::Conv2dOptions;
  EXPECT_TRUE(contains(conv(Options(8, 8, 3).groups(3)), "3 groups do not divide 8"));
  EXPECT_TRUE(contains(conv(Options(8, 8, 3).stride(0)), "a size is 0"));
  EXPECT_TRUE(contains(conv(Options(0, 8, 3)), "a size is 0"));
  EXPECT_TRUE(contains(conv(Options(8, 8, 0)), "a size is 0"));
  EXPECT_TRUE(contains(conv(Options(8, 8, 3).padding(-1)), "padding -1 x -1"));
}

// In its constructor a module has no owner yet, which what is attached to it would need.
struct SparseFromTheStart : torch::nn::Module {
  SparseFromTheStart() {
    register_module("fc", torch::nn::Linear(16, 16));
    sparsify(*this, SparsifyConfig());
  }
};

TEST(TorchErrors, AModelWithoutAnOwnerIsRefused) {
  EXPECT_EQ(one_line([] { std::make_shared<SparseFromTheStart>(); }),
            "sparsify: the model is not held by a shared_ptr: call it after the constructor, on a "
            "module made by std::make_shared or in a ModuleHolder");
}

TEST(TorchErrors, WeightsThatAreNoNumbersStayAsTheyAre) {
  torch::nn::Sequential model(torch::nn::Linear(16, 16), torch::nn::Linear(16, 16));
  auto* first = model->ptr(0)->as<torch::nn::LinearImpl>();
  first->weight.requires_grad_(false);
  first->weight.set_data(torch::ones({16, 16}, torch::kInt));
  SparsifyConfig config;
  config.recipe = "ste";
  config.first_and_last_dense = false;
  const auto reports = sparsify(*model, config);
  EXPECT_EQ(reports[0].reason, "weights of Int");
  EXPECT_EQ(reports[0].path, "torch");
  EXPECT_EQ(reports[1].recipe, "ste");
}

TEST(TorchErrors, FunctionsRefuseWhatTheyDoNotTake) {
  EXPECT_EQ(
      one_line([] {
        attention(torch::ones({2, 3}), 1, false);
      }),
      "attention: qkv is Float [2, 3], accepted is a floating-point tensor of [batch, tokens, "
      "3 · width]");
  EXPECT_TRUE(contains(one_line([] {
                         attention(torch::ones({2, 3, 10}), 2, false);
                       }),
                       "attention: rows of 10 for 2 heads"));
  EXPECT_EQ(one_line([] { weft::gelu(torch::ones({2}, torch::kLong)); }),
            "gelu: x is Long, accepted are floating-point numbers");
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({8}));
  for (const auto& type : {torch::kFloat, torch::kBFloat16}) {
    EXPECT_EQ(
        one_line([&] {
          layer_norm(norm, torch::ones({2, 6}, type));
        }),
        fmt::format("layer_norm: an input of {} [2, 6] for a norm over [8]", c10::toString(type)));
  }
}

TEST(TorchErrors, ModelsRefuseInputsOfOtherShapes) {
  const auto refusal = [](const std::string& kind, const torch::Tensor& x) {
    RunOptions options;
    options.model = kind;
    options.data = kind == "gpt" ? "text" : "glyphs";
    options.width = 16;
    options.depth = 1;
    options.heads = 2;
    options.patch = 4;
    options.context = 8;
    const auto model =
        make_model(options, kind == "gpt" ? ModelShape{0, 0, 0, 256} : ModelShape{1, 8, 8, 4});
    return one_line([&] { model->forward(x); });
  };
  EXPECT_EQ(refusal("vit", torch::ones({2, 1, 8, 12})),
            "vit: an input of [2, 1, 8, 12]: accepted is [batch, 1, 8, 8]");
  EXPECT_EQ(refusal("mlp", torch::ones({5})), "mlp: an input of [5]: accepted is [batch, ...]");
  EXPECT_TRUE(contains(refusal("mlp", torch::ones({5, 7})), "linear: an input of [5, 7]"));
  EXPECT_TRUE(contains(refusal("cnn", torch::ones({5, 3, 8, 8})),
                       "an input of [5, 3, 8, 8] for a convolution"));
  const std::string tokens = ": accepted are 64-bit integers of [batch, up to 8 tokens]";
  EXPECT_EQ(refusal("gpt", torch::ones({2, 9}, torch::kLong)),
            "gpt: an input of Long [2, 9]" + tokens);
  EXPECT_EQ(refusal("gpt", torch::ones({2, 8})), "gpt: an input of Float [2, 8]" + tokens);
  EXPECT_EQ(refusal("gpt", torch::full({2, 8}, 256, torch::kLong)),
            "gpt: a token is 256: accepted are 0 to 255");
}

}  // namespace
}  // namespace weft::test
