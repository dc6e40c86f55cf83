// What a framework may do with a linear layer, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/layer/network.h"
#include "weft/core/bf16.h"
#include "weft/core/error.h"
#include "weft/layer/linear_layer.h"
#include "weft/mask/verify.h"

namespace weft::test {
namespace {

// A mask from outside, as a run that is spread over processes has it from another one: before the
// first pass or later, and never one that the recipe would contradict.
TEST(LayerWithoutTorch, AGivenMaskIsUsedAndMustObey) {
  const std::vector<float> w = gaussian(64, 1);
  Mask mask(8, 8);
  for (int64_t r = 0; r < 8; ++r) {
    for (const int64_t c : {0, 1, 4, 5}) mask.set(r, c, true);
  }
  for (const bool first : {true, false}) {
    LinearLayer layer(8, 8);
    layer.configure(settings_of("static+dense_head=0", "2:4"));
    if (!first) layer.begin_pass({w.data()}, true);
    layer.give_mask(mask);
    if (first) layer.begin_pass({w.data()}, true);
    std::vector<float> x(8, 0.0f), y(8), dx(8);
    x[1] = x[2] = 1.0f;
    layer.forward<float>(w.data(), {x.data(), 1, 8}, nullptr, {y.data(), 1, 8});
    for (size_t o = 0; o < 8; ++o) EXPECT_EQ(y[o], w[o * 8 + 1]);
    std::fill(x.begin(), x.end(), 0.0f);
    x[3] = 1.0f;
    layer.backward_data<float>(w.data(), {x.data(), 1, 8}, {dx.data(), 1, 8});
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(dx[i], i % 4 < 2 ? w[3 * 8 + i] : 0.0f) << i;
    Mask crowded = mask;
    crowded.set(0, 2, true);
    EXPECT_THROW(layer.give_mask(crowded), Error);
    EXPECT_THROW(layer.give_mask(Mask(8, 4)), Error);
    EXPECT_EQ(layer.state().forward, mask);
  }
  for (const char* recipe : {"bi-mask", "s-ste", "static", "dense"}) {
    LinearLayer layer(8, 8);
    layer.configure(settings_of(recipe, "2:4"));
    EXPECT_THROW(layer.give_mask(mask), Error) << recipe;
  }
}

TEST(LayerWithoutTorch, AProductOfALayerThatIsNotReadyIsAnError) {
  LinearLayer layer(8, 8);
  layer.configure(settings_of("ste", "2:4"));
  const std::vector<float> w = gaussian(64, 1), x = gaussian(8, 2);
  std::vector<float> y(8);
  const auto forward = [&] {
    layer.forward<float>(w.data(), {x.data(), 1, 8}, nullptr, {y.data(), 1, 8});
  };
  EXPECT_THROW(forward(), Error) << "before the first pass";
  layer.begin_pass({w.data()}, true);
  EXPECT_NO_THROW(forward());
  layer.count_step();
  EXPECT_THROW(forward(), Error) << "with the masks of the weights before the step";
  layer.bring_up_to_date({w.data()});
  EXPECT_NO_THROW(forward());
  const std::vector<Bf16> narrow(8);
  std::vector<Bf16> result(8);
  EXPECT_THROW(layer.forward<Bf16>(w.data(), {narrow.data(), 1, 8}, nullptr, {result.data(), 1, 8}),
               Error);
  LinearLayer lbc(8, 8);
  lbc.configure(settings_of("lbc", "2:4"));
  EXPECT_THROW(lbc.begin_pass({w.data()}, true), Error) << "without its scores";
}

// Weights that cannot be used leave no operands of the ones before.
TEST(LayerWithoutTorch, AFailedUpdateLeavesNothingStale) {
  LinearLayer layer(8, 8);
  layer.configure(settings_of("ste", "2:4"));
  std::vector<float> w = gaussian(64, 1);
  layer.begin_pass({w.data()}, true);
  const int64_t stamp = layer.stamp();
  layer.count_step();
  w[5] = NAN;
  EXPECT_THROW(layer.bring_up_to_date({w.data()}), Error);
  EXPECT_NE(layer.stamp(), stamp);
  std::vector<float> y(8);
  EXPECT_THROW(layer.forward<float>(w.data(), {w.data() + 8, 1, 8}, nullptr, {y.data(), 1, 8}),
               Error);
}

// g and x as columns of wider matrices, as those of a fused projection.
TEST(LayerWithoutTorch, ActivationsMayHaveGapsBetweenRows) {
  constexpr int64_t kTokens = 12, kSize = 8, kWide = 20;
  const std::vector<float> w = gaussian(64, 1), x = gaussian(kTokens * kWide, 2),
                           g = gaussian(kTokens * kWide, 3);
  const auto closed = [&](const std::vector<float>& wide) {
    std::vector<float> all;
    for (int64_t t = 0; t < kTokens; ++t) {
      all.insert(all.end(), wide.begin() + t * kWide + 4, wide.begin() + t * kWide + 4 + kSize);
    }
    return all;
  };
  const std::vector<float> x2 = closed(x), g2 = closed(g);
  for (const PlanMode mode : {PlanMode::kSparse, PlanMode::kDense}) {
    for (const char* recipe : {"ste", "s-ste", "s-ste+fp8", "static+dense_head=0"}) {
      SCOPED_TRACE(recipe);
      LinearLayer layer(kSize, kSize);
      layer.configure(settings_of(recipe, "2:4", mode));
      layer.begin_pass({w.data()}, true);
      const Pass pass = layer.next_pass();
      std::vector<float> results[2];
      for (const bool gaps : {false, true}) {
        const MatrixView<const float> in(gaps ? x.data() + 4 : x2.data(), kTokens, kSize,
                                         gaps ? kWide : kSize);
        const MatrixView<const float> back(gaps ? g.data() + 4 : g2.data(), kTokens, kSize,
                                           gaps ? kWide : kSize);
        std::vector<float> y(kTokens * kSize), dx(kTokens * kSize), dw(kSize * kSize);
        layer.forward<float>(w.data(), in, nullptr, {y.data(), kTokens, kSize});
        layer.backward_data<float>(w.data(), back, {dx.data(), kTokens, kSize});
        layer.backward_weight<float>(w.data(), back, in, pass, {dw.data(), kSize, kSize});
        for (const auto* part : {&y, &dx, &dw}) {
          results[gaps].insert(results[gaps].end(), part->begin(), part->end());
        }
      }
      EXPECT_EQ(results[0], results[1]);
    }
  }
}

// The passes of a step may be in fp32 and in bf16, as with autocast around a part of a network: each
// is what a layer of that precision computes, and what was begun before can go on.
TEST(LayerWithoutTorch, ThePrecisionMayChangeBetweenProducts) {
  constexpr int64_t kTokens = 12, kSize = 16;
  const std::vector<float> w = gaussian(kSize * kSize, 1), x = gaussian(kTokens * kSize, 2);
  std::vector<Bf16> x16(x.size());
  for (size_t i = 0; i < x.size(); ++i) x16[i] = to_bf16(x[i]);
  const auto wide = [&](LinearLayer& layer) {
    std::vector<float> y(kTokens * kSize);
    layer.forward<float>(w.data(), {x.data(), kTokens, kSize}, nullptr, {y.data(), kTokens, kSize});
    return y;
  };
  const auto narrow = [&](LinearLayer& layer) {
    std::vector<Bf16> y(kTokens * kSize);
    layer.forward<Bf16>(w.data(), {x16.data(), kTokens, kSize}, nullptr,
                        {y.data(), kTokens, kSize});
    std::vector<float> out;
    for (const Bf16 one : y) out.push_back(to_float(one));
    return out;
  };
  for (const PlanMode mode : {PlanMode::kSparse, PlanMode::kDense}) {
    LayerSettings settings = settings_of("s-ste", "2:4", mode);
    LinearLayer mixed(kSize, kSize), in_bf16(kSize, kSize);
    mixed.configure(settings);
    settings.precision = Precision::kBf16;
    in_bf16.configure(settings);
    mixed.begin_pass({w.data()}, true);
    in_bf16.begin_pass({w.data()}, true);
    const std::vector<float> first = wide(mixed);
    const int64_t stamp = mixed.stamp();
    mixed.set_precision(Precision::kBf16);
    EXPECT_EQ(narrow(mixed), narrow(in_bf16));
    EXPECT_THROW(wide(mixed), Error);
    mixed.set_precision(Precision::kFp32);
    EXPECT_EQ(wide(mixed), first);
    EXPECT_EQ(mixed.stamp(), stamp);
  }
}

// A batch that is cut in two, each part told where it begins, draws the sample of the whole.
TEST(LayerWithoutTorch, SamplesKnowWhereTheirTokensBegin) {
  constexpr int64_t kTokens = 16, kSize = 8;
  const std::vector<float> w = gaussian(kSize * kSize, 1), x = gaussian(kTokens * kSize, 2),
                           g = gaussian(kTokens * kSize, 3);
  for (const PlanMode mode : {PlanMode::kDense, PlanMode::kSparse}) {
    LinearLayer layer(kSize, kSize);
    layer.configure(settings_of("s-ste", "2:4", mode));
    layer.begin_pass({w.data()}, true);
    const auto dw_of = [&](int64_t first, int64_t tokens, Pass pass) {
      std::vector<float> dw(kSize * kSize);
      layer.backward_weight<float>(w.data(), {g.data() + first * kSize, tokens, kSize},
                                   {x.data() + first * kSize, tokens, kSize}, pass,
                                   {dw.data(), kSize, kSize});
      return dw;
    };
    const std::vector<float> whole = dw_of(0, kTokens, {5, 0, 0, 0});
    const std::vector<float> front = dw_of(0, 8, {5, 0, 0, 0}), back = dw_of(8, 8, {5, 0, 0, 8});
    const std::vector<float> wrong = dw_of(8, 8, {5, 0, 0, 0});
    double gap = 0.0, others = 0.0;
    for (size_t i = 0; i < whole.size(); ++i) {
      gap = std::max<double>(gap, std::abs(whole[i] - (front[i] + back[i])));
      others = std::max<double>(others, std::abs(whole[i] - (front[i] + wrong[i])));
    }
    EXPECT_LT(gap, 1e-5);
    EXPECT_GT(others, 1e-2);
    EXPECT_THROW(dw_of(8, 8, {5, 0, 0, 6}), Error);
  }
}

// 1:8 weights with a gradient of 2:4: dW is that of the layer at 2:4 that draws the same sample,
// and the weights stay 1:8.
TEST(LayerWithoutTorch, AGradientHasAPatternOfItsOwn) {
  constexpr int64_t kTokens = 24, kSize = 16;
  const std::vector<float> w = gaussian(kSize * kSize, 1), x = gaussian(kTokens * kSize, 2),
                           g = gaussian(kTokens * kSize, 3);
  for (const PlanMode mode : {PlanMode::kDense, PlanMode::kSparse}) {
    const auto dw_of = [&](const char* recipe, const char* pattern, int64_t first) {
      LinearLayer layer(kSize, kSize);
      layer.configure(settings_of(recipe, pattern, mode));
      layer.begin_pass({w.data()}, true);
      EXPECT_EQ(
          count_groups_in(layer.state().forward, layer.shape(), Pattern::parse(pattern)).violations,
          0);
      std::vector<float> dw(kSize * kSize);
      layer.backward_weight<float>(w.data(), {g.data(), kTokens, kSize}, {x.data(), kTokens, kSize},
                                   {5, 0, 0, first}, {dw.data(), kSize, kSize});
      return dw;
    };
    const char* own = "s-ste+gradient=mvue@2:4";
    EXPECT_EQ(dw_of(own, "1:8", 0), dw_of("s-ste", "2:4", 0));
    EXPECT_NE(dw_of(own, "1:8", 0), dw_of("s-ste", "1:8", 0));
    EXPECT_NO_THROW(dw_of(own, "1:8", 4)) << "a group of four tokens, not of eight";
    EXPECT_THROW(dw_of("s-ste", "1:8", 4), Error);
  }
}

}  // namespace
}  // namespace weft::test
