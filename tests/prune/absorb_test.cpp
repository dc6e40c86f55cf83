// Mean absorption: every group keeps its sum.
#include "weft/prune/absorb.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/prune/matrices.h"
#include "weft/prune/support.h"

namespace weft {
namespace {

TEST(AbsorbMeans, KeepsTheSumOfEveryGroup) {
  for (const WeightShape shape :
       {WeightShape{5, 16, 1}, WeightShape{5, 18, 1}, {4, 10, 9}, {3, 3, 4}}) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(4, 8)}) {
      SCOPED_TRACE(trace("absorb", shape, pattern, "", 70));
      auto weights = draw_weights<double>(Kind::kGaussian, shape, 70);
      for (int64_t i = 0; i < std::min<int64_t>(4, shape.ins); ++i) {
        weights.at(1, i * shape.taps) = 0;
      }
      const Mask support = find_support(weights.data(), shape, {pattern, false, {}, {}});
      Matrix out(shape.outs, shape.cols());
      std::ranges::fill(out.values, 99.0);
      absorb_means(weights.data(), shape, pattern.group(), support, out.values.data());
      EXPECT_EQ(zero_outside_support(out, support), "");
      for (int64_t r = 0; r < shape.outs; ++r) {
        for (int64_t tap = 0; tap < shape.taps; ++tap) {
          for (int64_t first = 0; first < shape.ins; first += pattern.group()) {
            double was = 0.0, is = 0.0;
            std::set<double> gains;
            int kept = 0;
            for (int64_t i = first; i < std::min(first + pattern.group(), shape.ins); ++i) {
              const int64_t c = i * shape.taps + tap;
              was += weights.at(r, c), is += out.at(r, c), kept += support.at(r, c);
              if (support.at(r, c))
                gains.insert(std::round(1e9 * (out.at(r, c) - weights.at(r, c))));
            }
            if (kept == 0) {
              EXPECT_EQ(is, 0.0);
            }
            if (kept > 0) {
              EXPECT_NEAR(is, was, 1e-12);
            }
            EXPECT_LE(gains.size(), 1u) << "every weight that stays gains the same";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft
