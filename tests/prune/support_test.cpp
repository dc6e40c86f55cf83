// Supports against the best of all subsets of a group.
#include "weft/prune/support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "tests/weights.h"
#include "weft/mask/verify.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

// The mask that keeps the largest of every group, by looking at all subsets of a group.
double best_kept(const std::vector<double>& scores, int keep) {
  double best = 0.0;
  for (uint32_t subset = 0; subset < 1u << scores.size(); ++subset) {
    if (std::popcount(subset) > keep) continue;
    double sum = 0.0;
    for (size_t i = 0; i < scores.size(); ++i) sum += (subset >> i & 1) != 0 ? scores[i] : 0.0;
    best = std::max(best, sum);
  }
  return best;
}

TEST(FindSupport, KeepsTheMostOfEveryGroup) {
  for (const WeightShape shape : {WeightShape{6, 24, 1}, WeightShape{3, 11, 4}}) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(4, 8)}) {
      for (const bool wanda : {false, true}) {
        SCOPED_TRACE(trace(wanda ? "wanda" : "magnitude", shape, pattern, "", 80));
        const auto weights = draw_weights<double>(Kind::kGaussian, shape, 80);
        std::vector<double> norms;
        for (int64_t c = 0; c < shape.cols(); ++c) {
          norms.push_back(0.1 + Rng(test_seed(), 81).uniform(static_cast<uint64_t>(c)));
        }
        const auto score = [&](int64_t r, int64_t c) {
          return weights.magnitude(r, c) * (wanda ? norms[static_cast<size_t>(c)] : 1.0);
        };
        SupportOptions options{pattern, false, {}, {}};
        if (wanda) options.col_scale = norms;
        const Mask support = find_support(weights.data(), shape, options);
        for (int64_t r = 0; r < shape.outs; ++r) {
          for (int64_t tap = 0; tap < shape.taps; ++tap) {
            for (int64_t first = 0; first < shape.ins; first += pattern.group()) {
              std::vector<double> scores;
              double found = 0.0;
              for (int64_t i = first; i < std::min(first + pattern.group(), shape.ins); ++i) {
                const int64_t c = i * shape.taps + tap;
                scores.push_back(score(r, c));
                if (support.at(r, c)) found += score(r, c);
              }
              ASSERT_NEAR(found, best_kept(scores, pattern.keep()), 1e-12);
            }
          }
        }
        EXPECT_EQ(count_groups_in(support, shape, pattern).violations, 0);
      }
    }
  }
}

TEST(FindSupport, TransposableTilesWeighRowsByTheirScale) {
  const WeightShape shape{4, 16, 1};
  const Pattern pattern(2, 4);
  const auto weights = draw_weights<double>(Kind::kGaussian, shape, 82);
  const std::vector<double> scale = {-5.0, 0.01, 1.0, 3.0};
  Weights<double> scaled = weights;
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 16; ++c) scaled.at(r, c) *= scale[static_cast<size_t>(r)];
  }
  const Mask plain = find_support(weights.data(), shape, {pattern, true, {}, {}});
  const Mask folded = find_support(weights.data(), shape, {pattern, true, scale, {}});
  EXPECT_NE(plain, folded);
  for (int64_t col = 0; col < 16; col += 4) {
    EXPECT_NEAR(kept_magnitude(weights, plain, 0, col, 4, 4),
                best_of(full_masks(4, 4, 2), weights, col, 4, 4), 1e-12);
    EXPECT_NEAR(kept_magnitude(scaled, folded, 0, col, 4, 4),
                best_of(full_masks(4, 4, 2), scaled, col, 4, 4), 1e-12);
  }
  for (const Mask& mask : {plain, folded}) {
    EXPECT_EQ(count_groups_in(mask, shape, pattern).violations, 0);
    EXPECT_EQ(count_groups_out(mask, shape, pattern).violations, 0);
  }
}

TEST(FindSupport, NeverKeepsAZero) {
  const WeightShape shape{8, 16, 1};
  auto weights = draw_weights<double>(Kind::kIntegers, shape, 83);
  for (const bool transposable : {false, true}) {
    const Mask support = find_support(weights.data(), shape, {Pattern(3, 4), transposable, {}, {}});
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t c = 0; c < 16; ++c) {
        EXPECT_FALSE(support.at(r, c) && weights.at(r, c) == 0.0) << r << ", " << c;
      }
    }
    EXPECT_GT(support.count(), 0);
  }
}

TEST(FindSupport, IntersectsBitByBit) {
  const WeightShape shape{3, 130, 1};
  const auto a = draw_weights<double>(Kind::kIntegers, shape, 84);
  const auto b = draw_weights<double>(Kind::kIntegers, shape, 85);
  const Mask both = intersection(nonzeros(a.data(), 3, 130), nonzeros(b.data(), 3, 130));
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 130; ++c) {
      EXPECT_EQ(both.at(r, c), a.magnitude(r, c) > 0 && b.magnitude(r, c) > 0);
    }
  }
  EXPECT_TRUE(contains(message_of([] { intersection(Mask(1, 2), Mask(2, 1)); }), "[2, 1]"));
}

}  // namespace
}  // namespace weft
