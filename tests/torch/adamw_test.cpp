// moment=frozen: AdamW with a second moment that stays, and when weft::step freezes it.
#include "weft/torch/adamw.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "tests/layers.h"
#include "tests/support.h"
#include "weft/torch/step.h"

namespace weft {
namespace {

using test::contains;
using test::Kind;
using test::message_of;
using test::settings_of;
using test::Training;

torch::optim::AdamWOptions options_of() {
  return torch::optim::AdamWOptions(0.01).betas({0.9, 0.99}).weight_decay(0.1).eps(1e-8);
}

torch::Tensor gradient_of(int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(step) + 5);
  return torch::randn({6, 7}, torch::kDouble);
}

// From the formula, in scalars.
struct Formula {
  double w, m = 0.0, v = 0.0;
  int64_t t = 0, learned = 0;
  void step(double g, bool frozen) {
    ++t;
    m = 0.9 * m + 0.1 * g;
    if (!frozen) {
      v = 0.99 * v + 0.01 * g * g;
      ++learned;
    }
    w *= 1.0 - 0.01 * 0.1;
    const double mean = m / (1.0 - std::pow(0.9, static_cast<double>(t)));
    const double square = v / (1.0 - std::pow(0.99, static_cast<double>(learned)));
    w -= 0.01 * mean / (std::sqrt(square) + 1e-8);
  }
};

TEST(AdamW, KeepsTheSecondMomentOfWhatIsFrozenAlone) {
  torch::manual_seed(1);
  torch::Tensor frozen = torch::randn({6, 7}, torch::kDouble).requires_grad_(true);
  torch::Tensor other = frozen.detach().clone().requires_grad_(true);
  torch::Tensor plain = frozen.detach().clone().requires_grad_(true);
  std::vector<Formula> formula;
  for (int64_t i = 0; i < frozen.numel(); ++i) {
    formula.push_back({frozen.flatten()[i].item<double>()});
  }
  AdamW optimizer(std::vector<torch::Tensor>{frozen, other}, options_of());
  torch::optim::AdamW torchs(std::vector<torch::Tensor>{plain}, options_of());
  for (int64_t step = 0; step < 12; ++step) {
    const torch::Tensor gradient = gradient_of(step);
    for (torch::Tensor* one : {&frozen, &other, &plain}) one->mutable_grad() = gradient.clone();
    if (step == 5) optimizer.freeze_second_moment(frozen, 5);
    optimizer.step();
    torchs.step();
    EXPECT_TRUE(torch::equal(frozen.grad(), gradient)) << "the gradient is back";
    EXPECT_TRUE(torch::equal(other, plain)) << "torch's own step " << step;
    for (int64_t i = 0; i < frozen.numel(); ++i) {
      formula[static_cast<size_t>(i)].step(gradient.flatten()[i].item<double>(), step >= 5);
      EXPECT_NEAR(frozen.flatten()[i].item<double>(), formula[static_cast<size_t>(i)].w, 1e-12)
          << step;
    }
  }
  EXPECT_FALSE(torch::equal(frozen, other));
  optimizer.unfreeze_second_moment(frozen);
  const torch::Tensor before = frozen.detach().clone();
  optimizer.step();
  EXPECT_FALSE(torch::equal(frozen, before));
}

TEST(AdamW, HasNothingToFreezeBeforeTheFirstStep) {
  torch::Tensor w = torch::ones({2}).requires_grad_(true);
  AdamW optimizer(std::vector<torch::Tensor>{w}, options_of());
  EXPECT_TRUE(contains(message_of([&] { optimizer.freeze_second_moment(w, 3); }), "was learned"));
  w.mutable_grad() = torch::ones({2});
  optimizer.step();
  EXPECT_NO_THROW(optimizer.freeze_second_moment(w, 1));
  EXPECT_TRUE(contains(message_of([&] { optimizer.freeze_second_moment(w, 0); }), "was learned"));
}

// The second moment of a layer is learned in its dense head, and in a dense tail again.
TEST(FrozenMoment, IsThatOfTheSparsePhase) {
  LayerSettings settings = settings_of("sr-ste+dense_head=0.3+dense_tail=0.2+moment=frozen", "2:4");
  settings.total_steps = 10;
  Training run(Kind::kLinear, settings);
  AdamW optimizer(run.layer->parameters(), options_of());
  std::vector<torch::Tensor> moments;
  for (int step = 0; step < 10; ++step) {
    optimizer.zero_grad();
    run.pass(step, 1.0);
    weft::step(*run.layer, optimizer);
    for (auto& [key, state] : optimizer.state()) {
      auto& adamw = static_cast<torch::optim::AdamWParamState&>(*state);
      EXPECT_EQ(adamw.step(), step + 1);
      if (adamw.exp_avg_sq().sizes() == run.layer->weight.sizes()) {
        moments.push_back(adamw.exp_avg_sq().clone());
      }
    }
  }
  ASSERT_EQ(moments.size(), 10u);
  for (size_t step = 1; step < 10; ++step) {
    EXPECT_EQ(torch::equal(moments[step], moments[step - 1]), step >= 3 && step < 8) << step;
  }
}

TEST(FrozenMoment, NeedsAnOptimiserThatCan) {
  LayerSettings settings = settings_of("ste+dense_head=0.5+moment=frozen", "2:4");
  settings.total_steps = 4;
  Training run(Kind::kLinear, settings);
  run.pass(0, 1.0);
  EXPECT_TRUE(contains(message_of([&] { weft::step(*run.layer, run.optimizer); }),
                       "has moment=frozen, which needs weft::AdamW"));
  EXPECT_EQ(run.layer->state().step, 0) << "nothing has changed";
}

}  // namespace
}  // namespace weft
