// Layers under every recipe: gradients, the two paths, and what must not matter.
#include <gtest/gtest.h>

#include <bit>
#include <sstream>

#include "tests/layers.h"
#include "tests/support.h"
#include "weft/core/parallel.h"
#include "weft/mask/verify.h"

namespace weft {
namespace {

using test::all_recipes;
using test::contains;
using test::difference;
using test::Kind;
using test::kind_name;
using test::make_gradient;
using test::make_input;
using test::make_layer;
using test::message_of;
using test::same_bits;
using test::settings_of;
using test::Training;

constexpr Kind kKinds[] = {Kind::kLinear, Kind::kConv};
const std::vector<std::string> kPatterns = {"2:4", "1:4", "4:8", "2:4x2"};

std::string label(Kind kind, const std::string& recipe, const std::string& pattern) {
  return fmt::format("{} {} {}", kind_name(kind), recipe, pattern);
}

Mask nonzero_of(const torch::Tensor& weight, const WeightShape& shape) {
  Mask mask(shape.outs, shape.cols());
  const float* values = weight.data_ptr<float>();
  for (int64_t i = 0; i < weight.numel(); ++i) {
    mask.set(i / shape.cols(), i % shape.cols(), values[i] != 0.0f);
  }
  return mask;
}

// Calls body(kind, recipe, pattern) for every recipe of the table and a few free ones.
template <typename Body>
void for_every_recipe(const std::vector<std::string>& patterns, Body body) {
  for (const Kind kind : kKinds) {
    for (const std::string& recipe : all_recipes()) {
      for (const std::string& pattern : patterns) {
        SCOPED_TRACE(label(kind, recipe, pattern));
        body(kind, recipe, pattern);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
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

// L = Σ r ∘ y in double, and its derivatives by central differences. The forward product is linear
// in x, b and W̃, so the differences are exact up to rounding.
TEST(Gradients, AgreeWithFiniteDifferencesInDouble) {
  for_every_recipe({"2:4", "4:8"}, [](Kind kind, const std::string& recipe,
                                      const std::string& pattern) {
    if (contains(recipe, "fp8") || contains(recipe, "bi-mask")) return;  // on purpose not exact
    const auto layer = make_layer(kind, settings_of(recipe + "+gradient=exact", pattern));
    if (Recipe::parse(recipe).gradient->masked) {
      layer->configure(settings_of(recipe, pattern));
    }
    layer->to(torch::kDouble);
    ASSERT_EQ(layer->path(), LayerPath::kPlain);
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.05));
    for (int step = 0; step < 8; ++step) {  // static and lbc are sparse by then
      optimizer.zero_grad();
      const torch::Tensor out = layer->forward(make_input(kind, 50).to(torch::kDouble));
      out.backward(make_gradient(out, 60));
      weft::step(*layer, optimizer);
    }
    optimizer.zero_grad();
    EXPECT_TRUE(layer->always_dense() || layer->state().sparse());
    torch::Tensor x = make_input(kind, 3).to(torch::kDouble).requires_grad_(true);
    const torch::Tensor y = layer->forward(x);
    const torch::Tensor r = make_gradient(y, 4);
    y.backward(r);
    const torch::Tensor effective = layer->effective_weight();

    const auto loss = [&](const torch::Tensor& input, const torch::Tensor& w,
                          const torch::Tensor& bias) {
      const torch::NoGradGuard no_grad;
      const torch::Tensor out = kind == Kind::kLinear
                                    ? torch::matmul(input, w.t()) + bias
                                    : torch::conv2d(input, w, bias, {2, 1}, {1, 0});
      return (out * r).sum().item<double>();
    };
    const auto check = [&](const torch::Tensor& at, const torch::Tensor& gradient, auto evaluate) {
      torch::Tensor moved = at.detach().clone();
      const torch::Tensor flat = moved.view({-1});
      for (int64_t i = 0; i < flat.numel(); i += 1 + flat.numel() / 40) {
        const double here = flat[i].item<double>();
        flat[i] = here + 0.5;
        const double up = evaluate(moved);
        flat[i] = here - 0.5;
        const double down = evaluate(moved);
        flat[i] = here;
        EXPECT_NEAR(gradient.reshape({-1})[i].template item<double>(), up - down, 1e-9) << i;
      }
    };
    const torch::Tensor input = x.detach(), bias = layer->bias.detach();
    check(input, x.grad(), [&](const torch::Tensor& t) { return loss(t, effective, bias); });
    check(bias, layer->bias.grad(),
          [&](const torch::Tensor& t) { return loss(input, effective, t); });
    // With a masked gradient the pruned entries of W̃ do not move.
    const torch::Tensor moves = Recipe::parse(recipe).gradient->masked
                                    ? effective.ne(0).to(torch::kDouble)
                                    : torch::ones_like(effective);
    check(effective, layer->weight.grad(), [&](const torch::Tensor& t) {
      return loss(input, effective + (t - effective) * moves, bias);
    });
  });
}

TEST(Gradients, GoStraightThrough) {
  // The gradient of W is that of W̃ to the bit: no β, no Jacobian, no mask.
  for (const Kind kind : kKinds) {
    for (const char* recipe :
         {"ste", "sr-ste", "transposable", "bi-mask", "s-ste+gradient=exact"}) {
      SCOPED_TRACE(label(kind, recipe, "2:4"));
      Training sparse(kind, settings_of(recipe, "2:4")), dense(kind, settings_of("dense", "2:4"));
      sparse.pass(0, 1.0);
      dense.pass(0, 1.0);
      EXPECT_TRUE(same_bits(sparse.layer->weight.grad(), dense.layer->weight.grad()));
      EXPECT_TRUE(same_bits(sparse.layer->bias.grad(), dense.layer->bias.grad()));
    }
  }
}

TEST(Gradients, AreMaskedWhereTheRecipeSaysSo) {
  for (const Kind kind : kKinds) {
    for (const char* recipe : {"static+dense_head=0", "lbc"}) {
      SCOPED_TRACE(label(kind, recipe, "2:4"));
      Training run(kind, settings_of(recipe, "2:4"));
      for (int step = 0; step < 8; ++step) {
        run.step();
        const Mask& mask = run.layer->state().forward;
        run.optimizer.zero_grad();
        run.pass(0, 1.0);
        const torch::Tensor gradient = run.layer->weight.grad().reshape({mask.rows(), mask.cols()});
        for (int64_t r = 0; r < mask.rows(); ++r) {
          for (int64_t c = 0; c < mask.cols(); ++c) {
            ASSERT_TRUE(mask.at(r, c) || gradient[r][c].item<float>() == 0.0f);
          }
        }
      }
    }
  }
}

TEST(Gradients, SamplesAreUnbiased) {
  // The mean over many draws goes to the exact gradient as 1 / sqrt(draws).
  Training exact(Kind::kLinear, settings_of("s-ste+gradient=exact", "2:4"));
  exact.pass(0, 1.0);
  Training sampled(Kind::kLinear, settings_of("s-ste", "2:4"));
  const torch::Tensor target = exact.layer->weight.grad();
  double few = 0.0;
  torch::Tensor sum = torch::zeros_like(target);
  for (int draw = 0; draw < 1600; ++draw) {
    sampled.optimizer.zero_grad();
    sampled.pass(0, 1.0);
    sum += sampled.layer->weight.grad();
    if (draw == 15) few = ((sum / 16) - target).norm().item<double>();
  }
  const double many = ((sum / 1600) - target).norm().item<double>();
  EXPECT_LT(many, few / 6.0);  // 10 on average
  EXPECT_GT(few, 0.0);
}

TEST(Gradients, SecondDerivativesAreRefused) {
  const auto layer = make_layer(Kind::kLinear, settings_of("sr-ste", "2:4"));
  const torch::Tensor x = make_input(Kind::kLinear, 1).requires_grad_(true);
  const torch::Tensor loss = layer->forward(x).pow(2).sum();
  EXPECT_TRUE(contains(
      message_of([&] { torch::autograd::grad({loss}, {x}, {}, true, /*create_graph=*/true); }),
      "second derivatives"));
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

TEST(Decay, JoinsTheGradientOncePerStep) {
  for (const int micro_batches : {1, 2, 4}) {
    Training run(Kind::kLinear, settings_of("sr-ste", "2:4"));
    run.step();
    run.optimizer.zero_grad();
    for (int i = 0; i < micro_batches; ++i) run.pass(i, 1.0 / micro_batches);
    const torch::Tensor before = run.layer->weight.grad().clone();
    run.layer->add_decay(0.1);
    const torch::Tensor pruned = run.layer->effective_weight().eq(0).to(torch::kFloat);
    EXPECT_TRUE(torch::equal(run.layer->weight.grad(),
                             before + 2e-4f * run.layer->weight.detach() * pruned))
        << micro_batches;
  }
}

TEST(Decay, AloneShrinksPrunedWeightsAndMovesNoOthers) {
  for (const char* recipe : {"sr-ste+lambda=0.5", "sr-ste+lambda=0.5+decay=decoupled"}) {
    Training run(Kind::kLinear, settings_of(recipe, "2:4"));
    run.layer->weight.mutable_grad() = torch::zeros_like(run.layer->weight);
    torch::optim::SGD plain({run.layer->weight}, torch::optim::SGDOptions(0.1));
    const torch::Tensor first = run.layer->weight.detach().clone();
    const torch::Tensor kept = run.layer->effective_weight().ne(0);
    const Mask mask = run.layer->state().forward;
    for (int step = 0; step < 10; ++step) {
      run.layer->weight.mutable_grad().zero_();
      weft::step(*run.layer, plain);
      EXPECT_EQ(run.layer->state().forward, mask);
    }
    const torch::Tensor expected = torch::where(kept, first, first * std::pow(0.95, 10.0));
    EXPECT_LT(difference(run.layer->weight, expected), 1e-6) << recipe;
  }
}

TEST(Decay, OfZeroIsNone) {
  Training a(Kind::kLinear, settings_of("sr-ste+lambda=0", "2:4"));
  Training b(Kind::kLinear, settings_of("ste", "2:4"));
  for (int step = 0; step < 4; ++step) {
    a.step();
    b.step();
  }
  EXPECT_TRUE(same_bits(a.layer->weight, b.layer->weight));
}

TEST(Decay, OfALayerThatIsUsedAndRegisteredTwiceComesOnce) {
  struct Twice : torch::nn::Module {
    explicit Twice(std::shared_ptr<LayerModule> layer) {
      register_module("first", layer);
      register_module("second", layer);
    }
  };
  Training once(Kind::kLinear, settings_of("sr-ste+lambda=0.1", "2:4"));
  Training twice(Kind::kLinear, settings_of("sr-ste+lambda=0.1", "2:4"));
  Twice model(twice.layer);
  for (int i = 0; i < 2; ++i) {
    once.pass(i, 0.5);
    twice.pass(i, 0.5);  // the layer is used twice
  }
  weft::step(*once.layer, once.optimizer);
  weft::step(model, twice.optimizer);
  EXPECT_EQ(twice.layer->state().step, 1);
  EXPECT_TRUE(same_bits(once.layer->weight, twice.layer->weight));
  torch::optim::SGD other({torch::ones({1}).requires_grad_(true)}, torch::optim::SGDOptions(0.1));
  weft::step(model, other);  // trains another part of the model
  EXPECT_EQ(twice.layer->state().step, 1);
}

TEST(LbcLayer, IsDenseAtTheStart) {
  Training lbc(Kind::kLinear, settings_of("lbc", "2:4"));
  Training dense(Kind::kLinear, settings_of("dense", "2:4"));
  lbc.pass(0, 1.0);
  dense.pass(0, 1.0);
  EXPECT_TRUE(same_bits(lbc.y, dense.y));
  EXPECT_LT(difference(lbc.layer->scores.detach().sum({2}) * 0.5, torch::ones({136, 9})), 1e-6);
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

TEST(State, SavedInTheMiddleARunContinuesToTheBit) {
  for_every_recipe(
      {"2:4", "2:4x2"}, [](Kind kind, const std::string& recipe, const std::string& pattern) {
        for (const int saved_at : {3, 7}) {
          Training whole(kind, settings_of(recipe, pattern));
          std::stringstream model, optimizer;
          for (int step = 0; step < test::kTotalSteps; ++step) {
            if (step == saved_at) {
              torch::save(whole.layer, model);
              torch::save(whole.optimizer, optimizer);
            }
            whole.step();
          }
          Training resumed(kind, settings_of(recipe, pattern));
          {
            const torch::NoGradGuard no_grad;
            resumed.layer->weight.fill_(0.5f);
          }
          torch::load(resumed.layer, model);
          torch::load(resumed.optimizer, optimizer);
          resumed.resume_at(saved_at);
          for (int step = saved_at; step < test::kTotalSteps; ++step) resumed.step();
          ASSERT_TRUE(same_bits(whole.layer->weight, resumed.layer->weight)) << saved_at;
          ASSERT_TRUE(same_bits(whole.y, resumed.y)) << saved_at;
          if (whole.layer->scores.defined()) {
            ASSERT_TRUE(same_bits(whole.layer->scores, resumed.layer->scores));
          }
          EXPECT_EQ(whole.layer->state().forward, resumed.layer->state().forward);
          EXPECT_EQ(whole.layer->state().permutation, resumed.layer->state().permutation);
          EXPECT_EQ(whole.layer->state().row_order, resumed.layer->state().row_order);
        }
      });
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
        ASSERT_EQ(t.retained_as_rows_lie.has_value(), pattern.share() > 1);
        if (t.retained_as_rows_lie && !contains(recipe, "static")) {
          EXPECT_GE(t.retained, *t.retained_as_rows_lie);
        }
        EXPECT_FALSE(run.layer->telemetry(/*costly=*/false).retained_as_rows_lie);
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
  EXPECT_TRUE(contains(message_of([&] { layer->give_row_order({0, 1, 2}); }), "no order of 136"));
  layer = make_layer(Kind::kLinear, settings_of("static+dense_head=0", "2:4"));
  EXPECT_TRUE(contains(message_of([&] { layer->give_row_order(order); }), "for shared patterns"));
}

TEST(State, SurvivesACastToDoubleAndBack) {
  Training run(Kind::kLinear, settings_of("bi-mask", "2:4"));
  run.step();
  const Mask mask = run.layer->state().forward;
  const auto permutation = run.layer->state().permutation;
  run.layer->to(torch::kDouble);
  EXPECT_EQ(run.layer->path(), LayerPath::kPlain);
  run.layer->forward(run.x.detach().to(torch::kDouble));
  run.layer->to(torch::kFloat);
  run.layer->state_changed();  // reads the buffers again
  EXPECT_EQ(run.layer->state().forward, mask);
  EXPECT_EQ(run.layer->state().permutation, permutation);
}

TEST(State, DamagedBuffersAreRefused) {
  const auto damaged = [](const char* buffer, auto change) {
    Training run(Kind::kLinear, settings_of("bi-mask", "2:4"));
    run.step();
    for (auto& named : run.layer->named_buffers()) {
      if (named.key() == buffer) change(named.value());
    }
    return message_of([&] { run.layer->state_changed(); });
  };
  EXPECT_TRUE(contains(damaged("mask", [](torch::Tensor& t) { t[0][0] = -1; }), "past its last"));
  EXPECT_TRUE(contains(damaged("mask", [](torch::Tensor& t) { t.set_data(t.slice(0, 0, 3)); }),
                       "another shape"));
  EXPECT_TRUE(contains(damaged("permutation", [](torch::Tensor& t) { t[0] = 99; }),
                       "not a permutation of 136"));
  EXPECT_TRUE(contains(
      damaged("row_order", [](torch::Tensor& t) { t.set_data(torch::zeros({136}, torch::kLong)); }),
      "row_order: not a permutation of 136"));
  EXPECT_TRUE(contains(damaged("counters", [](torch::Tensor& t) { t[0] = 3; }), "version 3"));
}

TEST(State, OfAnotherRecipeIsRefused) {
  Training bi(Kind::kLinear, settings_of("bi-mask", "2:4"));
  bi.step();
  for (const auto& [recipe, pattern] : std::vector<std::pair<std::string, std::string>>{
           {"sr-ste", "2:4"}, {"bi-mask", "1:4"}, {"dense", "2:4"}}) {
    std::stringstream stream;
    torch::save(bi.layer, stream);
    Training other(Kind::kLinear, settings_of(recipe, pattern));
    EXPECT_TRUE(contains(message_of([&] { torch::load(other.layer, stream); }),
                         "another recipe or pattern"))
        << recipe << " " << pattern;
  }
}

TEST(State, ScoresAreLearntAgainWhenAnEarlierStateIsLoaded) {
  Training run(Kind::kLinear, settings_of("lbc", "2:4"));
  run.step();
  std::stringstream stream;
  torch::save(run.layer, stream);
  for (int step = 0; step < 8; ++step) run.step();
  EXPECT_FALSE(run.layer->scores.requires_grad());
  torch::load(run.layer, stream);
  EXPECT_TRUE(run.layer->scores.requires_grad());
}

TEST(Steps, EqualWeightsInAnotherPlaceAreTakenUp) {
  Training run(Kind::kLinear, settings_of("sr-ste", "2:4"));
  run.pass(0, 1.0);
  const torch::Tensor before = run.y;
  run.layer->weight.set_data(run.layer->weight.detach().clone());
  run.pass(0, 1.0);
  EXPECT_TRUE(same_bits(run.y, before));
}

TEST(Steps, WeightsThatChangeInAnyColumnAreNoticed) {
  Training run(Kind::kLinear, settings_of("sr-ste", "2:4"));
  run.pass(0, 1.0);
  {
    const torch::NoGradGuard no_grad;
    run.layer->weight.slice(1, 1) += 0.01;  // all but the first input
  }
  EXPECT_TRUE(contains(message_of([&] { run.pass(0, 1.0); }), "not through weft::step()"));
}

TEST(Steps, MasksFollowReplacedWeights) {
  Training run(Kind::kLinear, settings_of("transposable+mask_every=40", "2:4"));
  run.layer->weights_changed();  // nothing has begun
  EXPECT_FALSE(run.layer->state().begun);
  run.step();
  const Mask before = run.layer->state().forward;
  {
    const torch::NoGradGuard no_grad;
    torch::nn::init::normal_(run.layer->weight);
  }
  run.layer->weights_changed();  // at step 1 of 40
  EXPECT_NE(run.layer->state().forward, before);
}

TEST(Steps, WeightsThatChangeBehindTheLayerAreNoticed) {
  Training run(Kind::kLinear, settings_of("sr-ste", "2:4"));
  run.pass(0, 1.0);
  run.optimizer.step();  // not weft::step
  EXPECT_TRUE(contains(message_of([&] { run.pass(0, 1.0); }), "not through weft::step()"));
  run.layer->weights_changed();
  EXPECT_NO_THROW(run.pass(0, 1.0));
}

TEST(Steps, ABackwardPassAfterAStepIsRefused) {
  Training run(Kind::kLinear, settings_of("sr-ste", "2:4"));
  run.pass(0, 1.0);
  const torch::Tensor y = run.layer->forward(run.x);
  weft::step(*run.layer, run.optimizer);
  EXPECT_TRUE(contains(message_of([&] { y.sum().backward(); }), "run the forward pass again"));
}

TEST(Steps, WeightsThatAreNotFiniteAreNamedWithTheStep) {
  Training run(Kind::kLinear, settings_of("sr-ste", "2:4"));
  run.step();
  run.optimizer.zero_grad();
  run.pass(0, 1.0);
  run.layer->weight.mutable_grad()[0][0] = NAN;
  EXPECT_TRUE(contains(message_of([&] { weft::step(*run.layer, run.optimizer); }), "at step 2"));
}

TEST(Inputs, OfTheWrongShapeOrTypeAreRefused) {
  const auto linear = make_layer(Kind::kLinear, settings_of("ste", "2:4"));
  EXPECT_TRUE(contains(message_of([&] { linear->forward(torch::zeros({2, 35})); }), "35 features"));
  EXPECT_TRUE(contains(message_of([&] {
                         linear->forward(torch::zeros({2, 36}, torch::kDouble));
                       }),
                       "Double"));
  const auto conv = make_layer(Kind::kConv, settings_of("ste", "2:4"));
  EXPECT_TRUE(contains(message_of([&] { conv->forward(torch::zeros({2, 15, 7, 6})); }), "15 chan"));
  EXPECT_EQ(linear->forward(torch::zeros({0, 36})).size(0), 0);  // nothing is no error
  LayerSettings lbc = settings_of("lbc", "2:4");
  lbc.total_steps = 0;
  EXPECT_TRUE(contains(message_of([&] { linear->configure(lbc); }), "total_steps"));
}

TEST(Telemetry, CountsFlips) {
  LayerSettings settings = settings_of("ste", "2:4");
  settings.telemetry = true;
  Training run(Kind::kLinear, settings);
  run.step();
  run.step();
  const LayerTelemetry moving = run.layer->telemetry();
  EXPECT_GT(moving.flip_rate, 0.0);
  EXPECT_LE(moving.flip_rate, 1.0);
  EXPECT_EQ(moving.changed_bits % 2, 0);  // one in, one out
  const Mask before = run.layer->state().forward;
  run.step();
  for (int64_t r = 0; r < before.rows(); ++r) {
    for (int64_t c = 0; c < before.cols(); c += 4) {
      const uint64_t flips = before.bits(r, c, 4) ^ run.layer->state().forward.bits(r, c, 4);
      EXPECT_EQ(std::popcount(flips) % 2, 0);
    }
  }
  EXPECT_EQ(moving.forward_density, 0.5);
  EXPECT_GT(moving.retained, 0.5);
  EXPECT_EQ(moving.plan_text(), "sparse/sparse/dense");

  Training frozen(Kind::kLinear, settings, 0.0);
  frozen.step();
  frozen.step();
  EXPECT_EQ(frozen.layer->telemetry().changed_bits, 0);
}

TEST(Telemetry, KnowsWhatARecipeHolds) {
  LayerSettings settings = settings_of("bi-mask", "2:4");
  settings.telemetry = true;
  Training bi(Kind::kLinear, settings);
  bi.step();
  EXPECT_LT(bi.layer->telemetry().backward_kept, 1.0);
  EXPECT_GT(bi.layer->telemetry().backward_kept, 0.75);
  EXPECT_GT(bi.layer->telemetry().cosine.value(), 0.8);
  EXPECT_LT(bi.layer->telemetry().cosine.value(), 1.0);
  Training lbc(Kind::kLinear, settings_of("lbc", "2:4"));
  EXPECT_EQ(lbc.layer->telemetry().figure("alive"), 0.0);  // not begun
  lbc.step();
  EXPECT_GT(lbc.layer->telemetry().figure("alive"), 1.0);
  Training soft(Kind::kLinear, settings_of("s-ste", "2:4"));
  soft.step();
  EXPECT_GT(soft.layer->telemetry().figure("beta"), 1.0);
  EXPECT_EQ(soft.layer->telemetry().plan_text(), "sparse/sparse/sparse");
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
