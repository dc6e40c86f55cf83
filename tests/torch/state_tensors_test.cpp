// The state of a layer in its buffers: saved, loaded, cast, damaged.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/support.h"
#include "tests/torch/every_recipe.h"

namespace weft {
namespace {

using test::contains;
using test::for_every_recipe;
using test::Kind;
using test::message_of;
using test::same_bits;
using test::settings_of;
using test::Training;

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
                       "its shape is not"));
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

}  // namespace
}  // namespace weft
