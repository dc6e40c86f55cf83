// Layers in bf16: what is rounded where, that both paths mean the same, and that all a recipe does
// works there too. And the parts of models that have a bf16 of their own.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/layers.h"
#include "tests/support.h"
#include "weft/core/parallel.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/torch/attention.h"
#include "weft/torch/bf16_functions.h"
#include "weft/torch/sparsify.h"

namespace weft::test {
namespace {

constexpr Kind kPrecisionKinds[] = {Kind::kLinear, Kind::kConv};
constexpr double kHalfUnit = 0x1p-8;  // of bf16: the error of one rounding, relative

LayerSettings bf16_settings(const std::string& recipe, const std::string& pattern,
                            PlanMode mode = PlanMode::kSparse) {
  LayerSettings settings = settings_of(recipe, pattern, mode);
  settings.precision = Precision::kBf16;
  return settings;
}

torch::Tensor rounded(const torch::Tensor& t) { return t.detach().to(torch::kBFloat16); }

// In the middle of a graph, where nobody but the function that takes it keeps it.
torch::Tensor inside(const torch::Tensor& t) { return t.detach().requires_grad_(true) + 0; }

// Nothing, or by how much more than one rounding of bf16 `got` is from `want`, in double. sums:
// what fp32 sums may be wrong by, relative to the largest.
std::string rounding_error(const torch::Tensor& got, const torch::Tensor& want,
                           double sums = 1e-6) {
  const torch::Tensor gap = (got.to(torch::kDouble) - want).abs();
  const torch::Tensor bound = kHalfUnit * want.abs() + sums * want.abs().max();
  const torch::Tensor worst = (gap - bound).max();
  if (worst.item<double>() <= 0) return "";
  return fmt::format("{} more than the bound", worst.item<double>());
}

TEST(Precision, TheErrorOfOneRoundingIsFound) {
  const torch::Tensor want = torch::tensor({1.0, 100.0}, torch::kDouble);
  EXPECT_EQ(rounding_error(rounded(want), want), "");
  EXPECT_EQ(rounding_error(torch::tensor({1.003, 100.0}), want), "");
  EXPECT_NE(rounding_error(torch::tensor({1.005, 100.0}), want), "");
  EXPECT_NE(rounding_error(torch::tensor({1.0, 100.5}), want), "");
}

// The inputs and gradients of a step are the same, so what the paths differ in are sums of fp32,
// and where these fall on two sides of a step of bf16, that step.
TEST(Precision, PackedAndPlainAgreeOverTwelveSteps) {
  for (const Kind kind : {Kind::kLinear, Kind::kConv, Kind::kGroupedConv}) {
    for (const std::string& recipe : all_recipes()) {
      const bool permutes = contains(recipe, "bi-mask") || contains(recipe, "order_every");
      if (kind == Kind::kGroupedConv && permutes) continue;
      for (const char* pattern : {"2:4", "2:4x2"}) {
        SCOPED_TRACE(fmt::format("{} {} {}", kind_name(kind), recipe, pattern));
        LayerSettings plain = bf16_settings(recipe, pattern);
        plain.force_plain = true;
        Training a(kind, bf16_settings(recipe, pattern)), b(kind, plain);
        ASSERT_EQ(a.layer->path(), LayerPath::kPacked);
        ASSERT_EQ(b.layer->path(), LayerPath::kPlain);
        const bool fp8 = contains(recipe, "fp8");
        const double bound = fp8 ? 0.1 : 2 * kHalfUnit, sums = fp8 ? 0.1 : 2e-4;
        for (int64_t step = 0; step < kTotalSteps; ++step) {
          a.step();
          b.step();
          ASSERT_EQ(a.y.scalar_type(), torch::kBFloat16);
          ASSERT_EQ(b.y.scalar_type(), torch::kBFloat16);
          ASSERT_LT(difference(a.y, b.y), bound) << "y, step " << step;
          ASSERT_LT(difference(a.x.grad(), b.x.grad()), bound) << "dx, step " << step;
          ASSERT_LT(difference(a.layer->weight, b.layer->weight), sums) << "w, step " << step;
          ASSERT_LT(difference(a.layer->bias, b.layer->bias), sums) << "b, step " << step;
        }
        ASSERT_EQ(a.layer->weight.scalar_type(), torch::kFloat);
        ASSERT_EQ(a.layer->weight.grad().scalar_type(), torch::kFloat);
        if (a.layer->scores.defined()) {
          ASSERT_LT(difference(a.layer->scores, b.layer->scores), 2e-3);
        }
      }
    }
  }
}

// On a tile unit, the emulated one where there is no other, in all products that it takes.
TEST(Precision, TilesMeanTheSameAsThePlainPath) {
  for (const TileUnit unit : available_tile_units()) {
    if (unit == TileUnit::kNone) continue;
    force_tile_unit(tile_unit_name(unit));
    for (std::string recipe : all_recipes()) {
      for (const char* pattern : {"2:4x16", "1:4x32"}) {
        for (const PlanMode mode : {PlanMode::kSparse, PlanMode::kDense}) {
          const bool orders = contains(recipe, "sr-ste") && mode == PlanMode::kSparse;
          const std::string ordered = orders ? recipe + "+order_every=4" : recipe;
          SCOPED_TRACE(fmt::format("{} {} on {}", ordered, pattern, tile_unit_name(unit)));
          LayerSettings plain = bf16_settings(ordered, pattern);
          plain.force_plain = true;
          Training a(Kind::kLinear, bf16_settings(ordered, pattern, mode)), b(Kind::kLinear, plain);
          const bool fp8 = contains(recipe, "fp8");
          const double bound = fp8 ? 0.1 : 2 * kHalfUnit, sums = fp8 ? 0.1 : 2e-4;
          for (int64_t step = 0; step < 6; ++step) {
            a.step();
            b.step();
            ASSERT_LT(difference(a.y, b.y), bound) << "y, step " << step;
            ASSERT_LT(difference(a.x.grad(), b.x.grad()), bound) << "dx, step " << step;
            ASSERT_LT(difference(a.layer->weight, b.layer->weight), sums) << "w, step " << step;
          }
          const std::string plan = a.layer->telemetry().plan_text();
          // AVX512-BF16 need not be faster than fp32: there the planner measures, and may decline.
          if (unit == TileUnit::kAvx512Bf16) continue;
          EXPECT_TRUE(plan.starts_with("sparse bf16/") || plan.starts_with("dense bf16/")) << plan;
          if (recipe.starts_with("t-sr-ste") && mode == PlanMode::kSparse) {
            EXPECT_EQ(plan, "sparse bf16/sparse bf16/sparse bf16");
          }
        }
      }
    }
  }
  restore_tile_unit();
}

TEST(Precision, DensePlansMeanTheSameAsSparseOnes) {
  for (const Kind kind : kPrecisionKinds) {
    for (const std::string& recipe : all_recipes()) {
      SCOPED_TRACE(fmt::format("{} {}", kind_name(kind), recipe));
      Training a(kind, bf16_settings(recipe, "2:4", PlanMode::kSparse));
      Training b(kind, bf16_settings(recipe, "2:4", PlanMode::kDense));
      const bool fp8 = contains(recipe, "fp8");
      for (int64_t step = 0; step < 6; ++step) {
        a.step();
        b.step();
        ASSERT_LT(difference(a.y, b.y), fp8 ? 0.1 : 2 * kHalfUnit) << "y, step " << step;
        ASSERT_LT(difference(a.layer->weight, b.layer->weight), fp8 ? 0.1 : 2e-4) << step;
      }
    }
  }
}

// Against double, of operands that are rounded to bf16: y and dx are wrong by one rounding, dw and
// db by none.
TEST(Precision, EveryResultIsRoundedAtMostOnce) {
  for (const Kind kind : kPrecisionKinds) {
    for (const bool plain : {false, true}) {
      for (const PlanMode mode : {PlanMode::kSparse, PlanMode::kDense}) {
        SCOPED_TRACE(fmt::format("{}{}", kind_name(kind), plain ? ", plain" : ""));
        LayerSettings settings = bf16_settings("ste", "2:4", mode);
        settings.force_plain = plain;
        const auto layer = make_layer(kind, settings);
        const torch::Tensor x = make_input(kind, 3).requires_grad_(true);
        const torch::Tensor y = layer->forward(x);
        const torch::Tensor g = rounded(make_gradient(y, 4));
        y.backward(g);

        const torch::Tensor exact_x = rounded(x).to(torch::kDouble).requires_grad_(true);
        const torch::Tensor w =
            rounded(layer->effective_weight()).to(torch::kDouble).requires_grad_(true);
        const torch::Tensor b = layer->bias.detach().to(torch::kDouble).requires_grad_(true);
        const torch::Tensor want = kind == Kind::kLinear
                                       ? torch::matmul(exact_x, w.t()) + b
                                       : torch::conv2d(exact_x, w, b, {2, 1}, {1, 0});
        want.backward(g.to(torch::kDouble));
        EXPECT_EQ(rounding_error(y.detach(), want.detach()), "") << "y";
        EXPECT_EQ(rounding_error(x.grad(), exact_x.grad()), "") << "dx";
        EXPECT_LT(difference(layer->weight.grad(), w.grad()), 2e-6) << "dw";
        EXPECT_LT(difference(layer->bias.grad(), b.grad()), 2e-6) << "db";
        EXPECT_GT(difference(y.detach(), want.detach()), 1e-4) << "rounded at all";
      }
    }
  }
}

// 1001 ones: a sum in bf16 would stay at 256.
TEST(Precision, SumsAreFp32) {
  for (const bool plain : {false, true}) {
    LayerSettings settings = bf16_settings("dense", "2:4");
    settings.force_plain = plain;
    const auto layer = make_layer(Kind::kLinear, settings);
    const torch::Tensor y = layer->forward(torch::ones({1001, 36}));
    y.backward(torch::ones_like(y));
    EXPECT_TRUE(torch::equal(layer->bias.grad(), torch::full({136}, 1001.0f)));
    EXPECT_TRUE(torch::equal(layer->weight.grad(), torch::full({136, 36}, 1001.0f)));
  }
}

// The graph keeps the rounded input, not what it was rounded from; a bf16 input it keeps as it is.
TEST(Precision, ActivationsAreKeptInBf16) {
  for (const Kind kind : kPrecisionKinds) {
    const auto narrow = make_layer(kind, bf16_settings("ste", "2:4"));
    const auto wide = make_layer(kind, settings_of("ste", "2:4"));
    const torch::Tensor x = inside(make_input(kind, 3));
    ASSERT_EQ(x.use_count(), 1);
    const torch::Tensor kept_wide = wide->forward(x);
    EXPECT_EQ(x.use_count(), 2) << "else this test sees nothing";
    const torch::Tensor kept_narrow = narrow->forward(x);
    EXPECT_EQ(x.use_count(), 2);
    const torch::Tensor x16 = inside(rounded(x));
    x16.retain_grad();
    const auto before = x16.use_count();
    const torch::Tensor y = narrow->forward(x16);
    EXPECT_EQ(x16.use_count(), before + 1);
    y.backward(torch::ones_like(y));
    EXPECT_EQ(x16.grad().scalar_type(), torch::kBFloat16);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  }
}

TEST(Precision, OtherInputsAreRefused) {
  const auto narrow = make_layer(Kind::kLinear, bf16_settings("ste", "2:4"));
  const auto wide = make_layer(Kind::kLinear, settings_of("ste", "2:4"));
  const torch::Tensor x = make_input(Kind::kLinear, 1);
  EXPECT_TRUE(contains(message_of([&] { wide->forward(rounded(x)); }), "an input of BFloat16"));
  EXPECT_TRUE(contains(message_of([&] { narrow->forward(x.to(torch::kDouble)); }),
                       "an input of Double on cpu for weights of Float on cpu in bf16"));
  EXPECT_EQ(narrow->forward(torch::zeros({0, 36})).size(0), 0);
}

TEST(Precision, SavedInTheMiddleARunContinuesToTheBit) {
  for (const Kind kind : kPrecisionKinds) {
    for (const std::string& recipe : all_recipes()) {
      SCOPED_TRACE(fmt::format("{} {}", kind_name(kind), recipe));
      Training whole(kind, bf16_settings(recipe, "2:4"));
      std::stringstream model, optimizer;
      for (int step = 0; step < kTotalSteps; ++step) {
        if (step == 5) {
          torch::save(whole.layer, model);
          torch::save(whole.optimizer, optimizer);
        }
        whole.step();
      }
      Training resumed(kind, bf16_settings(recipe, "2:4"));
      torch::load(resumed.layer, model);
      torch::load(resumed.optimizer, optimizer);
      resumed.resume_at(5);
      for (int step = 5; step < kTotalSteps; ++step) resumed.step();
      ASSERT_TRUE(same_bits(whole.layer->weight, resumed.layer->weight));
      ASSERT_TRUE(same_bits(whole.y, resumed.y));
    }
  }
}

TEST(Precision, ThreadsDoNotMatter) {
  const int before = threads();
  for (const Kind kind : kPrecisionKinds) {
    for (const std::string& recipe : all_recipes()) {
      set_threads(1);
      Training a(kind, bf16_settings(recipe, "2:4"));
      for (int i = 0; i < 3; ++i) a.step();
      set_threads(3);
      Training b(kind, bf16_settings(recipe, "2:4"));
      for (int i = 0; i < 3; ++i) b.step();
      EXPECT_TRUE(same_bits(a.layer->weight, b.layer->weight)) << recipe;
      EXPECT_TRUE(same_bits(a.y, b.y)) << recipe;
    }
  }
  set_threads(before);
}

TEST(Precision, TelemetryAndWatchesWork) {
  force_tile_unit("none");  // the plan is then the same on every CPU
  for (const Kind kind : kPrecisionKinds) {
    LayerSettings settings = bf16_settings("bi-mask", "2:4");
    settings.telemetry = true;
    Training run(kind, settings);
    run.step();
    run.step();
    const LayerTelemetry telemetry = run.layer->telemetry();
    EXPECT_GT(telemetry.cosine.value(), 0.8);
    EXPECT_LT(telemetry.cosine.value(), 1.0);
    EXPECT_GT(telemetry.flip_rate, 0.0);
    EXPECT_EQ(telemetry.plan_text(), "sparse/sparse/dense");
    const torch::NoGradGuard no_grad;
    torch::Tensor x = make_input(kind, 1);
    int64_t rows = 0;
    {
      const LayerModule::InputWatch watch(
          [&](const LayerModule&, const std::function<torch::Tensor()>& see) {
            rows = see().size(0);
          });
      run.layer->forward(x);
    }
    EXPECT_GT(rows, 3);
    const LayerModule::FiniteWatch watch;
    run.layer->forward(x);
    EXPECT_EQ(watch.first(), "");
    x.reshape({-1})[0] = INFINITY;
    run.layer->forward(x);
    EXPECT_NE(watch.first(), "");
  }
  restore_tile_unit();
}

// torch's layers in bf16: their own code adds the bias, in the dtype of y.
TEST(Precision, ATorchLayerComputesInBf16) {
  torch::manual_seed(1);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(1)),
                              torch::nn::ReLU(), torch::nn::Flatten(),
                              torch::nn::Linear(8 * 4 * 4, 16), torch::nn::Linear(16, 4));
  SparsifyConfig config;
  config.recipe = "sr-ste";
  config.precision = Precision::kBf16;
  config.first_and_last_dense = false;
  config.planner = std::make_shared<Planner>(PlanMode::kSparse, "");
  sparsify(*model, config);
  const torch::Tensor y = model->forward(torch::randn({5, 8, 4, 4}));
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  y.to(torch::kFloat).square().sum().backward();
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_EQ(parameter.value().grad().scalar_type(), torch::kFloat) << parameter.key();
    EXPECT_GT(parameter.value().grad().abs().sum().item<double>(), 0.0) << parameter.key();
  }
}

TEST(Precision, ADensifiedLayerKeepsIt) {
  const auto layer = make_layer(Kind::kLinear, bf16_settings("ste", "2:4"));
  const torch::NoGradGuard no_grad;
  const torch::Tensor x = make_input(Kind::kLinear, 1), y = layer->forward(x);
  densify(*layer);
  EXPECT_EQ(layer->settings().precision, Precision::kBf16);
  EXPECT_LE(difference(layer->forward(x), y), 2 * kHalfUnit);
}

// ─── layer norm ───

struct NormRun {
  torch::Tensor y, dx, dweight, dbias;
};

NormRun norm_run(const torch::Tensor& input, const torch::Tensor& g, torch::nn::LayerNorm& norm) {
  norm->zero_grad();
  const torch::Tensor x = input.detach().requires_grad_(true);
  const torch::Tensor y = layer_norm(norm, x);
  y.backward(g.to(y.scalar_type()));
  return {y.detach(), x.grad(), norm->weight.grad().clone(), norm->bias.grad().clone()};
}

torch::nn::LayerNorm drawn_norm(int64_t width) {
  torch::nn::LayerNorm norm(torch::nn::LayerNormOptions({width}));
  const torch::NoGradGuard no_grad;
  norm->weight.normal_(1.0, 0.3);
  norm->bias.normal_(0.0, 0.3);
  return norm;
}

TEST(LayerNormBf16, IsThatOfFp32RoundedOnce) {
  torch::manual_seed(2);
  for (const int64_t width : {1, 7, 16, 33}) {
    torch::nn::LayerNorm norm = drawn_norm(width);
    const torch::Tensor x = rounded(torch::randn({3, 5, width}) * 3 + 1);
    const torch::Tensor g = rounded(torch::randn({3, 5, width}));
    const NormRun narrow = norm_run(x, g, norm), wide = norm_run(x.to(torch::kFloat), g, norm);
    EXPECT_EQ(narrow.y.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(torch::equal(narrow.y, rounded(wide.y))) << width;
    EXPECT_TRUE(torch::equal(narrow.dx, rounded(wide.dx))) << width;
    EXPECT_TRUE(torch::equal(narrow.dweight, wide.dweight)) << width;
    EXPECT_TRUE(torch::equal(narrow.dbias, wide.dbias)) << width;
    const torch::Tensor turned = x.transpose(0, 1);
    EXPECT_TRUE(torch::equal(layer_norm(norm, turned), layer_norm(norm, turned.contiguous())));
  }
}

TEST(LayerNormBf16, AgreesWithFiniteDifferences) {
  torch::manual_seed(3);
  const int64_t width = 12;
  torch::nn::LayerNorm norm = drawn_norm(width);
  const torch::Tensor x = rounded(torch::randn({4, width}) * 2);
  const torch::Tensor g = rounded(torch::randn({4, width}));
  const NormRun run = norm_run(x, g, norm);
  const torch::Tensor w = norm->weight.detach().to(torch::kDouble);
  const torch::Tensor b = norm->bias.detach().to(torch::kDouble);
  const auto loss = [&](const torch::Tensor& in, const torch::Tensor& weight) {
    const torch::Tensor centred = in - in.mean(-1, /*keepdim=*/true);
    const torch::Tensor variance = centred.square().mean(-1, /*keepdim=*/true);
    return ((centred / (variance + norm->options.eps()).sqrt() * weight + b) * g.to(torch::kDouble))
        .sum()
        .item<double>();
  };
  const auto slope = [&](torch::Tensor at, int64_t i, const std::function<double()>& value) {
    torch::Tensor flat = at.view({-1});
    const double before = flat[i].item<double>(), step = 1e-5;
    flat[i] = before + step;
    const double high = value();
    flat[i] = before - step;
    const double low = value();
    flat[i] = before;
    return (high - low) / (2 * step);
  };
  torch::Tensor exact_x = x.to(torch::kDouble), exact_w = w.clone();
  torch::Tensor dx = torch::empty_like(exact_x), dw = torch::empty_like(exact_w);
  const auto value = [&] { return loss(exact_x, exact_w); };
  for (int64_t i = 0; i < dx.numel(); ++i) dx.view({-1})[i] = slope(exact_x, i, value);
  for (int64_t i = 0; i < dw.numel(); ++i) dw[i] = slope(exact_w, i, value);
  EXPECT_EQ(rounding_error(run.dx, dx, 1e-5), "");
  EXPECT_LT(difference(run.dweight, dw), 1e-5);
}

TEST(LayerNormBf16, KeepsItsInputInBf16AndRefusesSecondDerivatives) {
  torch::nn::LayerNorm norm = drawn_norm(8);
  const torch::Tensor x = inside(rounded(torch::randn({4, 8})));
  const torch::Tensor y = layer_norm(norm, x);
  EXPECT_EQ(x.use_count(), 2);
  EXPECT_TRUE(contains(
      message_of([&] { torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true); }),
      "second derivatives"));
  const torch::NoGradGuard no_grad;
  EXPECT_EQ(layer_norm(norm, x).scalar_type(), torch::kBFloat16);
}

TEST(GeluBf16, IsThatOfFp32RoundedOnce) {
  torch::manual_seed(5);
  const torch::Tensor x = rounded(torch::randn({7, 33}) * 3);
  const torch::Tensor g = rounded(torch::randn({7, 33}));
  const auto run = [&](const torch::Tensor& in) {
    const torch::Tensor leaf = in.detach().requires_grad_(true);
    const torch::Tensor y = weft::gelu(leaf);
    y.backward(g.to(y.scalar_type()));
    return std::make_pair(y.detach(), leaf.grad());
  };
  const auto [y, dx] = run(x);
  const auto [wide_y, wide_dx] = run(x.to(torch::kFloat));
  EXPECT_TRUE(same_bits(y, rounded(wide_y)));
  EXPECT_TRUE(same_bits(dx, rounded(wide_dx)));
  const torch::Tensor kept = inside(x), of_kept = weft::gelu(kept);
  EXPECT_EQ(kept.use_count(), 2) << "as it is, in bf16";
}

// ─── attention ───

TEST(AttentionBf16, IsThatOfFp32RoundedOnce) {
  torch::manual_seed(4);
  for (const bool causal : {false, true}) {
    const torch::Tensor qkv = rounded(torch::randn({2, 70, 48}));
    const torch::Tensor g = rounded(torch::randn({2, 70, 16}));
    const auto run = [&](const torch::Tensor& in) {
      const torch::Tensor x = in.detach().requires_grad_(true);
      const torch::Tensor y = attention(x, 2, causal);
      y.backward(g.to(y.scalar_type()));
      return std::make_pair(y.detach(), x.grad());
    };
    const auto [y, dx] = run(qkv);
    const auto [wide_y, wide_dx] = run(qkv.to(torch::kFloat));
    EXPECT_TRUE(same_bits(y, rounded(wide_y)));
    EXPECT_TRUE(same_bits(dx, rounded(wide_dx)));
    const torch::Tensor kept = inside(qkv), of_kept = attention(kept, 2, causal);
    EXPECT_EQ(kept.use_count(), 2) << "as it is, in bf16";
  }
}

}  // namespace
}  // namespace weft::test
