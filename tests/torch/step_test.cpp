// weft::step: the decay of pruned weights, and weights that change without it.
#include "weft/torch/step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/layers.h"
#include "tests/support.h"

namespace weft {
namespace {

using test::contains;
using test::difference;
using test::Kind;
using test::message_of;
using test::same_bits;
using test::settings_of;
using test::Training;

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
  EXPECT_TRUE(contains(message_of([&] { run.pass(0, 1.0); }), "outside weft::step()"));
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
  EXPECT_TRUE(contains(message_of([&] { run.pass(0, 1.0); }), "outside weft::step()"));
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

}  // namespace
}  // namespace weft
