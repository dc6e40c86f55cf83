// The weights of a convolution with the channels of a tap side by side, and back.
#include <gtest/gtest.h>

#include <vector>

#include "weft/core/mask.h"
#include "weft/core/rng.h"
#include "weft/core/weight_shape.h"
#include "weft/pack/pack.h"

namespace weft::test {
namespace {

TEST(TapMajor, PutsTheChannelsOfATapSideBySide) {
  const WeightShape shape{2, 3, 4};
  std::vector<float> weights(24);
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(i);
  Mask mask(2, 12);
  mask.set(1, 2 * 4 + 3, true);
  const TapMajor result = tap_major(weights.data(), mask, shape);
  EXPECT_EQ((std::vector<float>(result.weights.begin(), result.weights.begin() + 12)),
            (std::vector<float>{0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}));
  EXPECT_TRUE(result.mask.at(1, 3 * 3 + 2));
  EXPECT_EQ(result.mask.count(), 1);
}

TEST(TapMajor, AgreesBitByBitWithItsDefinitionAndGoesBack) {
  Rng rng(7);
  for (const int64_t taps : {0, 1, 2, 9, 25, 63, 64, 65}) {
    for (const int64_t ins : {0, 1, 5, 63, 64, 65, 130}) {
      const WeightShape shape{19, ins, taps};  // more rows than one thread takes at once
      std::vector<float> weights(static_cast<size_t>(shape.outs * shape.cols()));
      Mask mask(shape.outs, shape.cols());
      for (size_t i = 0; i < weights.size(); ++i) {
        weights[i] = static_cast<float>(i);
        const auto at = static_cast<int64_t>(i);
        mask.set(at / shape.cols(), at % shape.cols(), rng.below(i, 2) == 0);
      }
      const TapMajor turned = tap_major(weights.data(), mask, shape);
      for (int64_t o = 0; o < shape.outs; ++o) {
        for (int64_t i = 0; i < ins; ++i) {
          for (int64_t t = 0; t < taps; ++t) {
            const int64_t from = i * taps + t, to = t * ins + i;
            ASSERT_EQ(turned.mask.at(o, to), mask.at(o, from)) << ins << " x " << taps;
            ASSERT_EQ(turned.weights[static_cast<size_t>(o * shape.cols() + to)],
                      weights[static_cast<size_t>(o * shape.cols() + from)]);
          }
        }
      }
      EXPECT_EQ(tensor_order(turned.mask, shape), mask);
      EXPECT_EQ(tensor_order(turned.weights, shape), weights);
    }
  }
}

}  // namespace
}  // namespace weft::test
