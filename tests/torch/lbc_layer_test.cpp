// LBC: dense at the start, and on a planted problem. There the targets need a known subset of every
// group, which is neither that of the largest weights nor the first, and after training the layer
// has kept that subset.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/layers.h"

namespace weft {
namespace {

using test::difference;
using test::Kind;
using test::kind_name;
using test::make_layer;
using test::same_bits;
using test::settings_of;
using test::Training;

// 1 on `keep` weights of every group, chosen at random: [outs, ins, taps]. Rows that share have the
// same.
torch::Tensor planted_mask(const LayerModule& layer, const Pattern& pattern) {
  const WeightShape shape = layer.weight_shape();
  const int64_t groups = shape.ins / pattern.group();
  const torch::Tensor order =
      torch::rand({shape.outs, groups, pattern.group(), shape.taps}).argsort(int64_t{2}, false);
  torch::Tensor mask = order.lt(pattern.keep()).to(torch::kFloat);
  for (int64_t row = 0; row < shape.outs; ++row) {
    const int64_t first = row / pattern.block() * pattern.block() + row % pattern.group();
    if (pattern.share() > 1 && first != row) mask[row] = mask[first];
  }
  return mask.reshape({shape.outs, shape.ins, shape.taps}).reshape(layer.weight.sizes());
}

TEST(LbcLayer, KeepsThePlantedSubsetOfEveryGroup) {
  for (const Kind kind : {Kind::kLinear, Kind::kConv}) {
    for (const char* text : {"2:4", "1:4", "2:4x2", "4:8", "2:8", "8:16", "4:16"}) {
      for (const bool plain : {false, true}) {
        const Pattern pattern = Pattern::parse(text);
        LayerSettings settings = settings_of("lbc", text);
        settings.total_steps = 40;
        settings.force_plain = plain;
        torch::manual_seed(4);
        const std::shared_ptr<LayerModule> layer =
            kind == Kind::kLinear
                ? std::shared_ptr<LayerModule>(std::make_shared<LinearImpl>(48, 24))
                : std::make_shared<Conv2dImpl>(torch::nn::Conv2dOptions(16, 24, {3, 2}));
        layer->configure(settings);
        torch::Tensor mask, teacher;
        {
          const torch::NoGradGuard no_grad;
          mask = planted_mask(*layer, pattern);
          // What is planted is smaller at first, and should be twice as large; the rest should be
          // 0.
          const torch::Tensor signs = torch::randn_like(layer->weight).sign();
          layer->weight.copy_(signs * (torch::rand_like(signs) * 0.2 + 1.0 - 0.5 * mask));
          layer->bias.zero_();
          teacher = 2.0 * mask * layer->weight;
        }
        torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.01));
        for (int step = 0; step < 40; ++step) {
          torch::manual_seed(static_cast<uint64_t>(100 + step));
          const torch::Tensor x =
              kind == Kind::kLinear ? torch::randn({512, 48}) : torch::randn({16, 16, 8, 8});
          const torch::Tensor target =
              kind == Kind::kLinear ? torch::matmul(x, teacher.t()) : torch::conv2d(x, teacher);
          optimizer.zero_grad();
          const torch::Tensor error = layer->forward(x) - target;
          (0.5 * error.square().sum() / static_cast<double>(error.numel() / error.size(1)))
              .backward();
          weft::step(*layer, optimizer);
        }
        const torch::Tensor kept = layer->effective_weight().ne(0).to(torch::kFloat);
        EXPECT_EQ((kept - mask).abs().sum().item<double>(), 0.0)
            << "of " << mask.numel() << ", " << kind_name(kind) << ' ' << text
            << (plain ? " plain" : " packed");
      }
    }
  }
}

TEST(LbcLayer, IsDenseAtTheStart) {
  Training lbc(Kind::kLinear, settings_of("lbc", "2:4"));
  Training dense(Kind::kLinear, settings_of("dense", "2:4"));
  lbc.pass(0, 1.0);
  dense.pass(0, 1.0);
  EXPECT_TRUE(same_bits(lbc.y, dense.y));
  EXPECT_LT(difference(lbc.layer->scores.detach().sum({2}) * 0.5, torch::ones({136, 9})), 1e-6);
}

}  // namespace
}  // namespace weft
