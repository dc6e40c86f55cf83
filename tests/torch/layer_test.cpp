// Layers under every recipe: the paths agree, and what must not matter does not.
#include <gtest/gtest.h>

#include "tests/support.h"
#include "tests/torch/every_recipe.h"
#include "weft/core/parallel.h"
#include "weft/mask/verify.h"

namespace weft {
namespace {

using test::all_recipes;
using test::contains;
using test::difference;
using test::for_every_recipe;
using test::Kind;
using test::kKinds;
using test::label;
using test::make_input;
using test::make_layer;
using test::message_of;
using test::same_bits;
using test::settings_of;
using test::Training;

const std::vector<std::string> kPatterns = {"2:4", "1:4", "4:8", "2:4x2"};

Mask nonzero_of(const torch::Tensor& weight, const WeightShape& shape) {
  Mask mask(shape.outs, shape.cols());
  const float* values = weight.data_ptr<float>();
  for (int64_t i = 0; i < weight.numel(); ++i) {
    mask.set(i / shape.cols(), i % shape.cols(), values[i] != 0.0f);
  }
  return mask;
}

TEST(Paths, PackedAndPlainAgreeOverTwelveSteps) {
  for_every_recipe(kPatterns, [](Kind kind, const std::string& recipe, const std::string& pattern) {
    LayerSettings plain = settings_of(recipe, pattern);
    plain.force_plain = true;
    Training a(kind, settings_of(recipe, pattern)), b(kind, plain);
    ASSERT_EQ(a.layer->path(), LayerPath::kPacked);
    ASSERT_EQ(b.layer->path(), LayerPath::kPlain);
    // FP8 rounds to steps of 1/8: sums that differ in the last bit may fall on two sides of one.
    const double bound = contains(recipe, "fp8") ? 0.1 : 2e-4;
    for (int64_t step = 0; step < test::kTotalSteps; ++step) {
      a.step();
      b.step();
      ASSERT_LT(difference(a.y, b.y), bound) << "y, step " << step;
      ASSERT_LT(difference(a.x.grad(), b.x.grad()), bound) << "dx, step " << step;
      ASSERT_LT(difference(a.layer->weight, b.layer->weight), bound) << "w, step " << step;
      ASSERT_LT(difference(a.layer->bias, b.layer->bias), bound) << "b, step " << step;
    }
  });
}

TEST(Paths, AgreeForGroupsOfChannels) {
  for (const std::string& recipe : all_recipes()) {
    for (const char* pattern : {"2:4", "2:4x2", "4:8"}) {
      SCOPED_TRACE(label(Kind::kGroupedConv, recipe, pattern));
      LayerSettings plain = settings_of(recipe, pattern);
      plain.force_plain = true;
      if (contains(recipe, "bi-mask")) {
        EXPECT_TRUE(contains(message_of([&] { make_layer(Kind::kGroupedConv, plain); }),
                             "a permutation would mix them"));
        continue;
      }
      if (contains(recipe, "order_every") && plain.pattern.share() > 1) {
        EXPECT_TRUE(contains(message_of([&] { make_layer(Kind::kGroupedConv, plain); }),
                             "a row order would mix them"));
        continue;
      }
      Training a(Kind::kGroupedConv, settings_of(recipe, pattern)), b(Kind::kGroupedConv, plain);
      for (int step = 0; step < 7; ++step) {
        a.step();
        b.step();
      }
      ASSERT_LT(difference(a.layer->weight, b.layer->weight), contains(recipe, "fp8") ? 0.1 : 2e-4);
    }
  }
  EXPECT_TRUE(contains(
      message_of([] { make_layer(Kind::kGroupedConv, settings_of("transposable", "3:5")); }),
      "do not hold whole blocks of 5"));
}

TEST(Paths, DensePlansMeanTheSameAsSparseOnes) {
  for_every_recipe({"2:4"}, [](Kind kind, const std::string& recipe, const std::string& pattern) {
    Training a(kind, settings_of(recipe, pattern, PlanMode::kSparse));
    Training b(kind, settings_of(recipe, pattern, PlanMode::kDense));
    const double bound = contains(recipe, "fp8") ? 0.1 : 2e-4;
    for (int64_t step = 0; step < 6; ++step) {
      a.step();
      b.step();
      ASSERT_LT(difference(a.x.grad(), b.x.grad()), bound) << "dx, step " << step;
      ASSERT_LT(difference(a.layer->weight, b.layer->weight), bound) << "w, step " << step;
    }
  });
}

TEST(Patterns, EveryRecipeTakesEveryPatternUpToGroup32) {
  for (const Kind kind : kKinds) {
    for (const char* pattern : {"1:2", "3:4", "3:5", "2:8", "1:16", "8:16", "16:32", "2:4x4",
                                "1:4x2", "4:8x2", "1:16x2", "2:32x16"}) {
      for (const std::string& recipe : all_recipes()) {
        SCOPED_TRACE(label(kind, recipe, pattern));
        LayerSettings plain = settings_of(recipe, pattern);
        plain.force_plain = true;
        Training a(kind, settings_of(recipe, pattern)), b(kind, plain);
        for (int step = 0; step < 7; ++step) {  // beyond the end of lbc's removal
          a.step();
          b.step();
        }
        ASSERT_LT(difference(a.layer->weight, b.layer->weight),
                  contains(recipe, "fp8") ? 0.1 : 2e-4);
      }
    }
  }
}

TEST(Dense, EveryRecipeWithKeepEqualToGroupIsDenseToTheBit) {
  for_every_recipe(
      {"4:4", "8:8x2"}, [](Kind kind, const std::string& recipe, const std::string& pattern) {
        if (contains(recipe, "fp8")) return;
        Training a(kind, settings_of(recipe, pattern)), b(kind, settings_of("dense", "2:4"));
        for (int step = 0; step < 5; ++step) {
          a.step();
          b.step();
        }
        EXPECT_TRUE(same_bits(a.y, b.y));
        EXPECT_TRUE(same_bits(a.x.grad(), b.x.grad()));
        EXPECT_TRUE(same_bits(a.layer->weight, b.layer->weight));
      });
}

TEST(BiMaskLayer, TheWeightGradientDoesNotKnowTheBackwardMask) {
  Training a(Kind::kLinear, settings_of("bi-mask", "2:4"));
  Training b(Kind::kLinear, settings_of("sr-ste", "2:4"));
  a.pass(0, 1.0);
  b.pass(0, 1.0);
  EXPECT_GT(a.layer->state().backward.rows(), 0);
  EXPECT_TRUE(same_bits(a.layer->weight.grad(), b.layer->weight.grad()));
  EXPECT_FALSE(same_bits(a.x.grad(), b.x.grad()));
}

TEST(Threads, DoNotMatter) {
  for_every_recipe({"2:4", "2:4x2"},
                   [](Kind kind, const std::string& recipe, const std::string& pattern) {
                     std::vector<torch::Tensor> weights;
                     for (const int count : {1, 2}) {
                       set_threads(count);
                       Training run(kind, settings_of(recipe, pattern));
                       for (int step = 0; step < 4; ++step) run.step(2);
                       weights.push_back(run.layer->weight.detach().clone());
                     }
                     EXPECT_TRUE(same_bits(weights[0], weights[1]));
                   });
}

TEST(Replicas, DrawTheirOwnSamples) {
  std::vector<torch::Tensor> gradients;
  for (const int64_t replica : {0, 1}) {
    LayerSettings settings = settings_of("s-ste", "2:4");
    settings.replica = replica;
    settings.replicas = 2;
    Training run(Kind::kLinear, settings);
    run.pass(0, 1.0);
    gradients.push_back(run.layer->weight.grad().clone());
  }
  EXPECT_FALSE(same_bits(gradients[0], gradients[1]));
}

TEST(MicroBatches, ShareThePackedOperands) {
  for (const Kind kind : kKinds) {
    Training run(kind, settings_of("sr-ste", "2:4"));
    run.pass(0, 0.5);
    const double packing = run.layer->telemetry().times.pack;
    EXPECT_GT(packing, 0.0);
    run.pass(1, 0.5);
    EXPECT_EQ(run.layer->telemetry().times.pack, packing);
    weft::step(*run.layer, run.optimizer);
    run.pass(0, 1.0);
    EXPECT_GT(run.layer->telemetry().times.pack, packing);
  }
}

TEST(MicroBatches, DrawTheirOwnSamples) {
  Training run(Kind::kLinear, settings_of("s-ste", "2:4"));
  run.pass(0, 1.0);
  const torch::Tensor first = run.layer->weight.grad().clone();
  run.optimizer.zero_grad();
  run.pass(0, 1.0);  // the same data: another call of the same step
  EXPECT_FALSE(same_bits(run.layer->weight.grad(), first));
  Training again(Kind::kLinear, settings_of("s-ste", "2:4"));
  again.pass(0, 1.0);
  EXPECT_TRUE(same_bits(again.layer->weight.grad(), first));
}

TEST(RowOrders, AreThereWhereRowsShareAndMasksObeyThem) {
  for (const Kind kind : kKinds) {
    for (const char* recipe :
         {"sr-ste+order_every=4+order_end=1", "transposable+order_every=2+order_end=1",
          "s-ste+order_every=4+order_end=1", "static+order_every=1+dense_head=0"}) {
      for (const char* text : {"2:4x4", "2:4x16", "2:4"}) {
        SCOPED_TRACE(label(kind, recipe, text));
        Training run(kind, settings_of(recipe, text));
        const Pattern pattern = Pattern::parse(text);
        const WeightShape shape = run.layer->weight_shape();
        bool moved = false;
        std::vector<int64_t> first;
        for (int step = 0; step < 8; ++step) {
          run.step();
          const LayerState& state = run.layer->state();
          ASSERT_EQ(state.row_order.size(), pattern.share() > 1 ? size_t(shape.outs) : 0);
          if (step == 0) first = state.row_order;
          moved |= state.row_order != first;
          ASSERT_EQ(count_groups_in(state.forward, shape, pattern, state.row_order).violations, 0);
          const Mask nonzero = nonzero_of(run.layer->effective_weight(), shape);
          ASSERT_EQ(count_groups_in(nonzero, shape, pattern, state.row_order).violations, 0);
          if (!contains(recipe, "transposable")) continue;
          ASSERT_EQ(count_groups_out(state.forward, shape, pattern, state.row_order).violations, 0);
        }
        // At every search there may be a better one, but not for a mask that is fixed.
        if (contains(recipe, "static")) {
          EXPECT_FALSE(moved);
        }
        if (contains(recipe, "sr-ste") && kind == Kind::kLinear && pattern.share() > 1) {
          EXPECT_TRUE(moved);
        }
        const LayerTelemetry t = run.layer->telemetry();
        ASSERT_EQ(t.retained_unpermuted.has_value(), pattern.share() > 1);
        if (t.retained_unpermuted && !contains(recipe, "static")) {
          EXPECT_GE(t.retained, *t.retained_unpermuted);
        }
        EXPECT_FALSE(run.layer->telemetry(/*costly=*/false).retained_unpermuted);
      }
    }
  }
}

// An order that comes with weights is kept, and makes their mask what it was.
TEST(RowOrders, CanBeGiven) {
  Training trained(Kind::kLinear, settings_of("sr-ste+order_every=1", "2:4x4"));
  for (int step = 0; step < 3; ++step) trained.step();
  const torch::Tensor weight = trained.layer->effective_weight();
  const std::vector<int64_t> order = trained.layer->state().row_order;
  for (const bool given : {true, false}) {
    auto layer = make_layer(Kind::kLinear, settings_of("static+dense_head=0", "2:4x4"));
    {
      const torch::NoGradGuard no_grad;
      layer->weight.copy_(weight);
    }
    if (given) layer->give_row_order(order);
    EXPECT_EQ(same_bits(layer->effective_weight(), weight), given);
    EXPECT_EQ(layer->state().row_order, given ? order : std::vector<int64_t>());
    EXPECT_TRUE(contains(message_of([&] { layer->give_row_order(order); }), "before the first"));
  }
  auto layer = make_layer(Kind::kLinear, settings_of("static+dense_head=0", "2:4x4"));
  EXPECT_TRUE(contains(message_of([&] {
                         layer->give_row_order({0, 1, 2});
                       }),
                       "not a permutation of 0..135"));
  layer = make_layer(Kind::kLinear, settings_of("static+dense_head=0", "2:4"));
  EXPECT_TRUE(
      contains(message_of([&] { layer->give_row_order(order); }), "needs a shared pattern"));
}

TEST(Inputs, OfTheWrongShapeOrTypeAreRefused) {
  const auto linear = make_layer(Kind::kLinear, settings_of("ste", "2:4"));
  EXPECT_TRUE(contains(message_of([&] {
                         linear->forward(torch::zeros({2, 35}));
                       }),
                       "an input of [2, 35]"));
  EXPECT_TRUE(contains(message_of([&] {
                         linear->forward(torch::zeros({2, 36}, torch::kDouble));
                       }),
                       "Double"));
  const auto conv = make_layer(Kind::kConv, settings_of("ste", "2:4"));
  EXPECT_TRUE(contains(message_of([&] {
                         conv->forward(torch::zeros({2, 15, 7, 6}));
                       }),
                       "[2, 15, 7, 6]"));
  EXPECT_EQ(linear->forward(torch::zeros({0, 36})).size(0), 0);  // nothing is no error
  LayerSettings lbc = settings_of("lbc", "2:4");
  lbc.total_steps = 0;
  EXPECT_TRUE(contains(message_of([&] { linear->configure(lbc); }), "total_steps"));
}

// So that a model that is exported and loaded computes what was trained, to the bit.
TEST(EffectiveWeight, HasTheBitsThatProductsMultiplyWith) {
  for (const char* recipe : {"s-ste", "sr-ste"}) {
    for (const char* pattern : {"2:4", "1:4", "2:4x2"}) {
      const auto layer = make_layer(Kind::kLinear, settings_of(recipe, pattern));
      const torch::NoGradGuard no_grad;
      layer->bias.zero_();
      const torch::Tensor products = layer->forward(torch::eye(36)).t();
      EXPECT_TRUE(torch::equal(products, layer->effective_weight())) << recipe << ' ' << pattern;
    }
  }
}

}  // namespace
}  // namespace weft
