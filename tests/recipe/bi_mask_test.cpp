// The backward mask of Bi-Mask (invariants 10 to 12).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "tests/recipe/masks.h"
#include "weft/mask/solver.h"
#include "weft/recipe/bi_mask.h"
#include "weft/recipe/permutation.h"

namespace weft::test {
namespace {

TEST(BiMask, IsInsideTheForwardMaskAndNmAlongPermutedOutputs) {
  for (const char* text : {"2:4", "1:4", "4:8", "1:16", "2:4x2"}) {
    const Pattern pattern = Pattern::parse(text);
    const WeightShape shape{70, 131, 1};
    const std::vector<float> w = gaussian(shape.outs * shape.cols(), 21);
    const Mask forward = top_n(w, shape, pattern);
    std::vector<int64_t> permutation = identity_permutation(shape.outs);
    improve_permutation(forward, pattern, {}, Rng(1), permutation);
    ASSERT_TRUE(is_permutation(permutation));
    const Mask backward = backward_mask(w.data(), forward, shape, pattern, permutation);
    for (int64_t c = 0; c < shape.cols(); ++c) {
      for (int64_t first = 0; first < shape.outs; first += pattern.group()) {
        std::vector<float> kept, dropped;
        for (int64_t p = first; p < std::min(shape.outs, first + pattern.group()); ++p) {
          const int64_t row = permutation[static_cast<size_t>(p)];
          EXPECT_TRUE(!backward.at(row, c) || forward.at(row, c));
          const float size = std::abs(w[static_cast<size_t>(row * shape.cols() + c)]);
          if (backward.at(row, c)) {
            kept.push_back(size);
          } else if (forward.at(row, c)) {
            dropped.push_back(size);
          }
        }
        EXPECT_LE(kept.size(), static_cast<size_t>(pattern.keep()));
        if (dropped.empty()) continue;
        EXPECT_EQ(kept.size(), static_cast<size_t>(pattern.keep()));  // no more than needed
        EXPECT_GE(*std::min_element(kept.begin(), kept.end()),
                  *std::max_element(dropped.begin(), dropped.end()));
      }
    }
  }
}

TEST(BiMask, LosesNothingOfAMaskThatIsTransposableUnderThePermutation) {
  const WeightShape shape{32, 48, 1};
  const std::vector<float> w = gaussian(shape.outs * shape.cols(), 4);
  const Mask mask = find_mask(solver("exact"), w.data(), shape, Pattern(2, 4));
  EXPECT_EQ(backward_mask(w.data(), mask, shape, Pattern(2, 4), identity_permutation(32)), mask);
  std::vector<int64_t> permutation = identity_permutation(32);
  std::rotate(permutation.begin(), permutation.begin() + 5, permutation.end());
  Mask scattered(32, 48);  // row i of `mask` is output permutation[i]
  for (int64_t r = 0; r < 32; ++r) {
    for (int64_t c = 0; c < 48; ++c) {
      scattered.set(permutation[static_cast<size_t>(r)], c, mask.at(r, c));
    }
  }
  EXPECT_EQ(backward_mask(w.data(), scattered, shape, Pattern(2, 4), permutation), scattered);
  EXPECT_NE(backward_mask(w.data(), scattered, shape, Pattern(2, 4), identity_permutation(32)),
            scattered);
}

TEST(BiMask, KeepsTheExpectedShareOfRandomMasks) {
  const WeightShape shape{512, 1024, 1};
  const std::map<std::string, double> expected = {
      {"2:4", 0.8125}, {"4:8", 0.863}, {"2:8", 0.766}, {"1:4", 0.684}, {"1:16", 0.644}};
  for (const auto& [text, share] : expected) {
    const Pattern pattern = Pattern::parse(text);
    const std::vector<float> w = gaussian(shape.outs * shape.cols(), 8);
    const Mask forward = top_n(w, shape, pattern);
    const Mask backward =
        backward_mask(w.data(), forward, shape, pattern, identity_permutation(shape.outs));
    const double kept =
        static_cast<double>(backward.count()) / static_cast<double>(forward.count());
    EXPECT_NEAR(kept, share, 0.01) << text;
    EXPECT_EQ(backward.count(), permutation_value(forward, pattern, PermutationGoal::kKept,
                                                  identity_permutation(shape.outs)));
  }
}

}  // namespace
}  // namespace weft::test
