// Layers that train without torch: a network under every recipe, and its state, saved and loaded.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/layer/network.h"
#include "weft/core/error.h"

namespace weft::test {
namespace {

std::vector<std::string> every_recipe() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.push_back(recipe.name);
  for (const char* more : {"s-ste+backward=bi-mask", "t-sr-ste+fp8", "sr-ste+decay=decoupled",
                           "static+forward=transposable"}) {
    names.push_back(more);
  }
  return names;
}

TEST(LayerWithoutTorch, EveryRecipeLearns) {
  for (const std::string& recipe : every_recipe()) {
    SCOPED_TRACE(recipe);
    Network network(settings_of(recipe, "2:4"));
    double first = 0.0, last = 0.0;
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = network.loss_after_step(step);
      ASSERT_TRUE(std::isfinite(loss)) << step;
      if (step < 6) first += loss;
      if (step >= kSteps - 6) last += loss;
    }
    EXPECT_LT(last, 0.95 * first);
  }
}

TEST(LayerWithoutTorch, OperandsObeyThePattern) {
  for (const std::string& recipe : every_recipe()) {
    SCOPED_TRACE(recipe);
    Network network(settings_of(recipe, "2:4"));
    for (int64_t step = 0; step < kSteps / 2 + 2; ++step) network.loss_after_step(step);
    const Recipe parsed = Recipe::parse(recipe);
    for (const int number : {0, 1}) {
      ASSERT_EQ(network.layer(number).state().sparse(), !parsed.is_dense());
      if (parsed.is_dense()) continue;
      ASSERT_FALSE(network.layer(number).trains_scores());  // lbc has removed what it removes
      const std::vector<float> w = network.effective(number);
      for (size_t i = 0; i < w.size(); i += 4) {
        int kept = 0;
        for (size_t k = i; k < i + 4; ++k) kept += w[k] != 0.0f;
        ASSERT_EQ(kept, 2) << i;
      }
    }
  }
}

TEST(LayerWithoutTorch, ARunRepeatsAndResumesFromItsArraysToTheBit) {
  for (const char* recipe : {"t-sr-ste", "bi-mask", "lbc", "s-ste"}) {
    SCOPED_TRACE(recipe);
    Network a(settings_of(recipe, "2:4")), b(settings_of(recipe, "2:4"));
    for (int64_t step = 0; step < 9; ++step) {
      ASSERT_EQ(a.loss_after_step(step), b.loss_after_step(step)) << step;
    }
    for (const int number : {0, 1}) {
      const std::vector<StateArray> saved = b.state(number);
      LayerSettings settings = settings_of(recipe, "2:4");
      settings.number = number;
      b.layer(number).configure(settings);
      EXPECT_FALSE(b.layer(number).state().begun);
      b.layer(number).load_state(saved);
    }
    for (int64_t step = 9; step < 15; ++step) {
      ASSERT_EQ(a.loss_after_step(step), b.loss_after_step(step)) << step;
    }
  }
}

TEST(LayerWithoutTorch, AStateOfAnotherRecipeOrMalformedIsRefusedAndChangesNothing) {
  Network network(settings_of("bi-mask", "2:4"));
  network.loss_after_step(0);
  Layer& layer = network.layer(0);
  const std::vector<StateArray> saved = layer.save_state();
  // Of another run: whatever a refused load took of these would show.
  LayerSettings other_seed = settings_of("bi-mask", "2:4");
  other_seed.seed = 6;
  Network other(other_seed);
  for (const int64_t step : {0, 1}) other.loss_after_step(step);
  const std::vector<StateArray> foreign = other.layer(0).save_state();
  for (const size_t i : {0, 1, 2, 5}) ASSERT_NE(foreign[i].values, saved[i].values) << i;
  const auto expect_refused = [&](std::vector<StateArray> arrays, const char* part) {
    try {
      layer.load_state(arrays);
      FAIL() << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    const std::vector<StateArray> now = layer.save_state();
    for (size_t i = 0; i < saved.size(); ++i) {
      EXPECT_EQ(now[i].values, saved[i].values) << part << ": " << saved[i].name;
    }
  };
  std::vector<StateArray> arrays = foreign;
  arrays[0].values.pop_back();
  expect_refused(arrays, "its shape is not");
  arrays = foreign;
  arrays[2].values[0] = arrays[2].values[1];
  expect_refused(arrays, "permutation");
  arrays = foreign;
  arrays[5].values[8] ^= 1;
  expect_refused(arrays, "another recipe");
  arrays = foreign;
  arrays.erase(arrays.begin() + 3);
  expect_refused(arrays, "no array 'row_order'");
}

}  // namespace
}  // namespace weft::test
