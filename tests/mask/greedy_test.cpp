// The greedy solvers against their bounds and their rule for ties.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "tests/mask/solver_checks.h"
#include "tests/weights.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

TEST(GreedyKeep, KeepsAtLeastHalfOfTheBest) {
  uint64_t stream = 1700;
  for (const auto& [rows, cols, keep] :
       {std::array{4, 4, 1}, {4, 4, 2}, {4, 4, 3}, {3, 3, 1}, {3, 4, 2}, {2, 4, 1}}) {
    const std::vector<TileCode>& masks = legal_masks(rows, cols, keep);
    for (const Kind kind : kAllKinds) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const Pattern pattern(keep, 4);
        const auto weights = draw_weights<double>(kind, {rows, cols}, ++stream);
        SCOPED_TRACE(trace("greedy-keep", weights.shape, pattern, name_of(kind), stream));
        const double kept =
            kept_magnitude(weights, mask_of(solver("greedy-keep"), weights, pattern));
        const double best = best_of(masks, weights, 0, rows, cols);
        ASSERT_GE(kept * (1 + kRounding), best / 2);
        ASSERT_LE(kept, best * (1 + kRounding));
      }
    }
  }
}

TEST(GreedyKeep, ComesAsCloseToHalfAsOneLikes) {
  for (const double e : {0.25, 0x1p-10, 0x1p-40}) {
    const Weights<double> weights{{2, 2}, {1, 1 - e, 1 - e, 0}};
    const Pattern pattern(1, 2);
    const double kept = kept_magnitude(weights, mask_of(solver("greedy-keep"), weights, pattern));
    const double best = kept_magnitude(weights, mask_of(solver("exact"), weights, pattern));
    EXPECT_EQ(kept / best, 1 / (2 - 2 * e)) << "e = " << e;
  }
}

// The masks of greedy-keep need not be full, so they are not always below the best full mask. Six
// of the heavy 3 x 3 weights are legal; but a mask that also keeps 2 in the last row and in the
// last column has room for five.
TEST(GreedyKeep, MayKeepMoreThanTheBestFullMask) {
  Weights<float> weights{{4, 4}, std::vector<float>(16)};
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) weights.at(r, c) = r == c ? 8 : 9;  // so that no tie misleads it
  }
  const Pattern pattern(2, 4);
  EXPECT_EQ(kept_magnitude(weights, mask_of(solver("greedy-keep"), weights, pattern)), 54);
  EXPECT_EQ(kept_magnitude(weights, mask_of(solver("exact"), weights, pattern)), 45);
  EXPECT_EQ(best_of(legal_masks(4, 4, 2), weights, 0, 4, 4), 54);
  EXPECT_EQ(best_of(full_masks(4, 4, 2), weights, 0, 4, 4), 45);
}

TEST(GreedyPrune, PrunesAtMostTwiceTheLeast) {
  uint64_t stream = 1800;
  for (const auto& [rows, cols, keep] :
       {std::array{3, 3, 1}, {3, 3, 2}, {4, 4, 1}, {4, 4, 2}, {4, 4, 3}, {3, 4, 2}, {4, 2, 1}}) {
    const std::vector<TileCode>& masks = legal_masks(rows, cols, keep);
    for (const Kind kind : kAllKinds) {
      for (int repeat = 0; repeat < 20; ++repeat) {
        const Pattern pattern(keep, 4);
        const auto weights = draw_weights<double>(kind, {rows, cols}, ++stream);
        SCOPED_TRACE(trace("greedy-prune", weights.shape, pattern, name_of(kind), stream));
        double total = 0;
        for (const double weight : weights.values) total += std::abs(weight);
        const Mask mask = mask_of(solver("greedy-prune"), weights, pattern);
        const double pruned = total - kept_magnitude(weights, mask);
        const double least = total - best_of(masks, weights, 0, rows, cols);
        ASSERT_LE(pruned, 2 * least + kRounding * total);
        ASSERT_GE(pruned, least - kRounding * total);
      }
    }
  }
}

TEST(Greedy, BreaksTiesByRowThenByColumn) {
  const Weights<float> equal{{4, 4}, std::vector<float>(16, 1)};
  EXPECT_EQ(mask_of(solver("greedy-keep"), equal, Pattern(2, 4)),
            mask_from({"1100", "1100", "0011", "0011"}));
  EXPECT_EQ(mask_of(solver("greedy-prune"), equal, Pattern(2, 4)),
            mask_from({"0000", "0000", "0011", "0011"}));
}

}  // namespace
}  // namespace weft::test
