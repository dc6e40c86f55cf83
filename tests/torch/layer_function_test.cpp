// Gradients of layers: finite differences, straight through, masked, sampled.
#include <gtest/gtest.h>

#include "tests/support.h"
#include "tests/torch/every_recipe.h"

namespace weft {
namespace {

using test::contains;
using test::for_every_recipe;
using test::Kind;
using test::kKinds;
using test::label;
using test::make_gradient;
using test::make_input;
using test::make_layer;
using test::message_of;
using test::same_bits;
using test::settings_of;
using test::Training;

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

}  // namespace
}  // namespace weft
