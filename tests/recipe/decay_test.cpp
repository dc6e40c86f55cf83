// The decay of pruned weights (invariants 8 and 9).
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/recipe/masks.h"
#include "weft/core/masked_copy.h"
#include "weft/recipe/decay.h"

namespace weft::test {
namespace {

TEST(Decay, TouchesPrunedWeightsOnly) {
  const WeightShape shape{5, 70, 1};
  const std::vector<float> w = gaussian(shape.outs * shape.cols(), 2);
  const Mask mask = top_n(w, shape, Pattern(2, 4));
  std::vector<float> gradient(w.size(), 1.0f);
  add_where_pruned(w.data(), mask, 0.5f, gradient.data());
  for (size_t i = 0; i < w.size(); ++i) {
    const bool kept = mask.at(static_cast<int64_t>(i) / 70, static_cast<int64_t>(i) % 70);
    EXPECT_EQ(gradient[i], kept ? 1.0f : 1.0f + 0.5f * w[i]);
  }
  std::vector<float> decayed = w;  // decoupled: (1 − ηλ) per step, and the mask stays
  for (int step = 0; step < 10; ++step) {
    add_where_pruned(decayed.data(), mask, -0.1f, decayed.data());
    EXPECT_EQ(top_n(decayed, shape, Pattern(2, 4)), mask);
  }
  for (size_t i = 0; i < w.size(); ++i) {
    const bool kept = mask.at(static_cast<int64_t>(i) / 70, static_cast<int64_t>(i) % 70);
    EXPECT_NEAR(decayed[i], kept ? w[i] : w[i] * std::pow(0.9f, 10.0f), 1e-6f);
  }
}

}  // namespace
}  // namespace weft::test
