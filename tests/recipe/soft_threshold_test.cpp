// The soft threshold of S-STE against its formula (invariants 18 to 20).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "tests/recipe/masks.h"
#include "weft/core/rng.h"
#include "weft/mask/row_order.h"
#include "weft/recipe/soft_threshold.h"

namespace weft::test {
namespace {

std::vector<float> soft(const std::vector<float>& weights, const WeightShape& shape,
                        const Pattern& pattern, double beta = 1.0) {
  std::vector<float> out(weights.size(), NAN);
  soft_threshold(weights.data(), top_n(weights, shape, pattern), shape, pattern, beta, out.data());
  return out;
}

std::vector<float> hard(const std::vector<float>& weights, const WeightShape& shape,
                        const Pattern& pattern) {
  const Mask mask = top_n(weights, shape, pattern);
  std::vector<float> out = weights;
  for (int64_t r = 0; r < shape.outs; ++r) {
    for (int64_t c = 0; c < shape.cols(); ++c) {
      if (!mask.at(r, c)) out[static_cast<size_t>(r * shape.cols() + c)] = 0.0f;
    }
  }
  return out;
}

float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0.0f;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(SoftThreshold, IsTheFormulaOnKnownGroups) {
  const std::vector<float> w = {1, -3, 2, 4, 2, 2, -2, 2, 0, 0, 0, 5};
  EXPECT_EQ(soft(w, {1, 12, 1}, Pattern(2, 4)),
            (std::vector<float>{0, -1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 5}));
  EXPECT_EQ(soft(w, {1, 12, 1}, Pattern(1, 4)),
            (std::vector<float>{0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 5}));
  EXPECT_EQ(soft(w, {1, 12, 1}, Pattern(4, 4)), w);  // τ = 0
}

// Groups of a convolution run along the inputs at one tap; a last one is shorter.
TEST(SoftThreshold, IsTheFormulaAtEveryTap) {
  for (const char* text : {"2:4", "1:4", "3:7", "2:64"}) {
    const Pattern pattern = Pattern::parse(text);
    for (const int64_t taps : {2, 9, 25}) {
      const WeightShape shape{3, 70, taps};
      const std::vector<float> w = gaussian(shape.outs * shape.cols(), 21);
      const std::vector<float> s = soft(w, shape, pattern, 1.5);
      for (int64_t o = 0; o < shape.outs; ++o) {
        for (int64_t tap = 0; tap < taps; ++tap) {
          for (int64_t first = 0; first < shape.ins; first += pattern.group()) {
            const int64_t end = std::min<int64_t>(shape.ins, first + pattern.group());
            const auto at = [&](int64_t i) {
              return static_cast<size_t>(o * shape.cols() + i * taps + tap);
            };
            std::vector<float> sizes;
            for (int64_t i = first; i < end; ++i) sizes.push_back(std::abs(w[at(i)]));
            std::sort(sizes.rbegin(), sizes.rend());
            const auto keep = static_cast<size_t>(pattern.keep());
            const float threshold = keep < sizes.size() ? sizes[keep] : 0.0f;
            for (int64_t i = first; i < end; ++i) {
              const float left = std::max(std::abs(w[at(i)]) - threshold, 0.0f);
              ASSERT_EQ(s[at(i)], 1.5f * std::copysign(left, w[at(i)])) << text << ", " << taps;
            }
          }
        }
      }
    }
  }
}

TEST(SoftThreshold, IsLipschitzWhereHardMasksJump) {
  const Rng rng(7);
  float hard_worst = 0.0f;
  for (const char* text : {"2:4", "1:4", "4:8", "8:16"}) {
    const Pattern pattern = Pattern::parse(text);
    const WeightShape shape{1, pattern.group(), 1};
    for (uint64_t i = 0; i < 500; ++i) {
      std::vector<float> a = gaussian(pattern.group(), 1000 + i);
      // Two equal magnitudes at the edge of the mask, then a nudge that flips them.
      std::vector<size_t> order(a.size());
      for (size_t k = 0; k < order.size(); ++k) order[k] = k;
      std::sort(order.begin(), order.end(),
                [&](size_t x, size_t y) { return std::abs(a[x]) > std::abs(a[y]); });
      const auto edge = static_cast<size_t>(pattern.keep());
      a[order[edge]] = -a[order[edge - 1]];
      std::vector<float> b = a;
      for (size_t k = 0; k < b.size(); ++k) {
        b[k] += 1e-3f * static_cast<float>(rng.normal(i * 64 + k));
      }
      const float step = largest_difference(a, b);
      EXPECT_LE(largest_difference(soft(a, shape, pattern), soft(b, shape, pattern)),
                2.0f * step * 1.001f);
      hard_worst = std::max(
          hard_worst, largest_difference(hard(a, shape, pattern), hard(b, shape, pattern)) / step);
    }
  }
  EXPECT_GT(hard_worst, 100.0f);  // the test can fail
}

TEST(SoftThreshold, OfACellIsLipschitzByTwiceItsRows) {
  const Pattern pattern = Pattern::parse("2:4x2");
  const WeightShape shape{8, 4, 1};
  for (uint64_t i = 0; i < 500; ++i) {
    const std::vector<float> a = gaussian(32, 5000 + i);
    std::vector<float> b = a;
    for (size_t k = 0; k < b.size(); ++k) {
      b[k] += 1e-3f * static_cast<float>(Rng(77).normal(i * 64 + k));
    }
    EXPECT_LE(largest_difference(soft(a, shape, pattern), soft(b, shape, pattern)),
              4.0f * largest_difference(a, b) * 1.001f);
  }
}

TEST(SoftThreshold, IsHomogeneousOddAndInsideTheHardMask) {
  const WeightShape shape{6, 37, 3};
  for (const char* text : {"2:4", "3:8", "2:4x2"}) {
    const Pattern pattern = Pattern::parse(text);
    const std::vector<float> w = gaussian(shape.outs * shape.cols(), 11);
    std::vector<float> doubled = w, negated = w;
    for (float& value : doubled) value *= 2.0f;
    for (float& value : negated) value = -value;
    const std::vector<float> s = soft(w, shape, pattern), s2 = soft(doubled, shape, pattern),
                             sn = soft(negated, shape, pattern);
    const Mask mask = top_n(w, shape, pattern);
    for (size_t i = 0; i < w.size(); ++i) {
      EXPECT_EQ(s2[i], 2.0f * s[i]);
      EXPECT_EQ(sn[i], -s[i]);
      const auto at = static_cast<int64_t>(i);
      EXPECT_TRUE(s[i] == 0.0f || mask.at(at / shape.cols(), at % shape.cols()));
    }
  }
}

TEST(SoftThreshold, ACellShrinksByItsSum) {
  // 1:4x2, rows 0 and 4 share: sums 3 1 9 5 -> τ = 5 is dropped, entry 2 keeps 1 − 5/9.
  const WeightShape shape{8, 4, 1};
  std::vector<float> w(32, 0.0f);
  const std::vector<float> row0 = {1, -1, 6, -5}, row4 = {2, 0, -3, 0};
  std::copy(row0.begin(), row0.end(), w.begin());
  std::copy(row4.begin(), row4.end(), w.begin() + 16);
  const std::vector<float> s = soft(w, shape, Pattern::parse("1:4x2"), 2.0);
  EXPECT_FLOAT_EQ(s[2], 2.0f * 6.0f * (1.0f - 5.0f / 9.0f));
  EXPECT_FLOAT_EQ(s[18], 2.0f * -3.0f * (1.0f - 5.0f / 9.0f));
  EXPECT_EQ(std::count(s.begin(), s.end(), 0.0f), 30);
}

// As that of the rows in their places.
TEST(SoftThreshold, FollowsARowOrder) {
  for (const char* text : {"1:4x2", "2:4x4", "2:4"}) {
    const Pattern pattern = Pattern::parse(text);
    for (const WeightShape& shape : {WeightShape{21, 16, 1}, WeightShape{16, 6, 4}}) {
      const std::vector<float> w = gaussian(shape.outs * shape.cols(), 9);
      std::vector<int64_t> order = identity_order(shape.outs);
      std::reverse(order.begin(), order.end());
      std::swap(order[2], order[7]);
      const std::vector<float> in_places = in_row_order(w.data(), shape, order);
      const std::vector<float> want = soft(in_places, shape, pattern, 1.5);
      const Mask mask =
          find_mask(solver("magnitude"), w.data(), shape, pattern, std::span<const int64_t>(order));
      std::vector<float> out(w.size(), NAN);
      soft_threshold(w.data(), mask, shape, pattern, 1.5, out.data(), order);
      EXPECT_EQ(in_row_order(out.data(), shape, order), want) << text;
      EXPECT_NEAR(
          soft_threshold_scale(w.data(), mask, shape, pattern, order),
          soft_threshold_scale(in_places.data(), top_n(in_places, shape, pattern), shape, pattern),
          1e-12)
          << text;
    }
  }
}

TEST(SoftThreshold, ScaleIsTheLeastSquaresOne) {
  const WeightShape shape{512, 1024, 1};
  const Pattern pattern(2, 4);
  const std::vector<float> w = gaussian(shape.outs * shape.cols(), 3);
  const double beta = soft_threshold_scale(w.data(), top_n(w, shape, pattern), shape, pattern);
  EXPECT_NEAR(beta, 1.485, 0.01);  // of Gaussian weights
  const std::vector<float> s = soft(w, shape, pattern);
  const auto error = [&](double scale) {
    double sum = 0.0;
    for (size_t i = 0; i < w.size(); ++i) sum += std::pow(w[i] - scale * s[i], 2);
    return sum;
  };
  EXPECT_LT(error(beta), error(1.01 * beta));
  EXPECT_LT(error(beta), error(0.99 * beta));
  const std::vector<float> equal(64, 1.0f);
  EXPECT_EQ(
      soft_threshold_scale(equal.data(), top_n(equal, {16, 4, 1}, pattern), {16, 4, 1}, pattern),
      1.0);  // S(W) is zero: nothing to scale
}

}  // namespace
}  // namespace weft::test
