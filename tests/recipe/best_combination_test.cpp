// The union of LBC: subsets, their scores, and their removal (invariants 14 to 16).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/rng.h"
#include "weft/mask/verify.h"
#include "weft/recipe/best_combination.h"
#include "weft/recipe/grouping.h"

namespace weft::test {
namespace {

// Of every group the subset with the highest score; where scores factorise, the `keep` weights with
// the highest.
Mask best_subsets(const std::vector<float>& scores, const WeightShape& shape,
                  const Pattern& pattern, bool factorised) {
  const BestCombination lbc(shape, pattern);
  const Grouping grouping(shape, pattern);
  Mask best(shape.outs, shape.cols());
  for (int64_t c = 0; c < lbc.cells(); ++c) {
    const Cell cell = grouping.cell(c);
    for (int64_t g = 0; g < lbc.groups(); ++g) {
      const Group group = grouping.group(g);
      const Candidates table(pattern.keep(), group.length, factorised);
      const float* score = scores.data() + (c * lbc.groups() + g) * lbc.candidates();
      std::vector<int> order(static_cast<size_t>(table.count()));
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(), [&](int a, int b) { return score[a] > score[b]; });
      order.resize(factorised ? std::min(order.size(), static_cast<size_t>(pattern.keep())) : 1);
      uint64_t kept = 0;
      for (const int candidate : order) kept |= table.members(candidate);
      for (int64_t r = 0; r < cell.rows; ++r) {
        for (int k = 0; k < group.length; ++k) {
          best.set(cell.first_row + r * cell.step, group.first_col + k * group.step,
                   (kept >> k & 1) != 0);
        }
      }
    }
  }
  return best;
}

TEST(BestCombination, BeginsDenseAndEndsWithTheBestSubset) {
  for (const char* text : {"2:4", "1:4", "4:8", "2:4x2", "8:16", "4:16"}) {
    const Pattern pattern = Pattern::parse(text);
    const WeightShape shape{19, 37, 2};
    const BestCombination lbc(shape, pattern);
    std::vector<float> scores(static_cast<size_t>(lbc.scores()));
    lbc.first_scores(scores);
    Mask alive = lbc.all_alive();
    EXPECT_EQ(lbc.mask(alive).count(), shape.outs * shape.cols()) << text;

    const Rng rng(5);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] += static_cast<float>(rng.normal(i));
    const bool factorised = pattern.group() == 16;  // more than kMaxSubsets
    const Mask best = best_subsets(scores, shape, pattern, factorised);
    int64_t before = alive.count();
    for (int step = 0; step <= 10; ++step) {
      const Mask last = alive;
      lbc.remove(scores, step / 10.0, 3.0, alive);
      EXPECT_LE(alive.count(), before) << text;
      for (int64_t r = 0; r < alive.rows(); ++r) {
        for (int64_t i = 0; i < alive.cols(); ++i) EXPECT_TRUE(!alive.at(r, i) || last.at(r, i));
      }
      before = alive.count();
      // What momentum does to scores that nobody looks at any more.
      for (int64_t r = 0; r < alive.rows(); ++r) {
        for (int64_t i = 0; i < alive.cols(); ++i) {
          if (!alive.at(r, i)) scores[static_cast<size_t>(r * alive.cols() + i)] = 100.0f;
        }
      }
    }
    const Mask mask = lbc.mask(alive);
    EXPECT_EQ(count_groups_in(mask, shape, pattern).violations, 0) << text;
    EXPECT_EQ(mask, best) << text;
    Mask later = alive;  // nothing is left to remove
    lbc.remove(scores, 2.0, 3.0, later);
    EXPECT_EQ(later, alive);
  }
}

TEST(BestCombination, FollowsThePapersScheduleAt24) {
  const Candidates candidates(2, 4, false);
  ASSERT_EQ(candidates.count(), 6);
  EXPECT_FLOAT_EQ(candidates.first_score(), 1.0f / 3.0f);
  const std::map<int, int> alive = {{0, 6},  {4, 6},  {5, 5},  {9, 5},  {10, 4}, {15, 4},
                                    {16, 3}, {24, 3}, {25, 2}, {59, 2}, {60, 1}};
  for (const auto& [epoch, count] : alive) EXPECT_EQ(candidates.alive(epoch / 60.0, 3.0), count);
}

TEST(BestCombination, ScoresOfLargeGroupsFactorise) {
  const BestCombination lbc({4, 32, 1}, Pattern(8, 16));
  EXPECT_EQ(lbc.candidates(), 16);  // not 12870
  const Candidates singles(8, 16, true);
  EXPECT_EQ(singles.alive(0.0, 3.0), 16);
  EXPECT_EQ(singles.alive(1.0, 3.0), 8);
}

TEST(BestCombination, ScoreGradientIsThatOfTheModelLinearInU) {
  // L = Σ_m u_m g_m w_m with u_m = Σ_i α_i θ_im: dL/dα_i against finite differences.
  const WeightShape shape{9, 10, 2};
  for (const char* text : {"2:4", "2:4x2"}) {
    const Pattern pattern = Pattern::parse(text);
    const BestCombination lbc(shape, pattern);
    const Grouping grouping(shape, pattern);
    const auto size = static_cast<size_t>(shape.outs * shape.cols());
    std::vector<double> g(size), w(size);
    for (size_t i = 0; i < size; ++i) {
      g[i] = Rng(1).normal(i);
      w[i] = Rng(2).normal(i);
    }
    std::vector<float> scores(static_cast<size_t>(lbc.scores()));
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(Rng(3).uniform(i));
    Mask alive = lbc.all_alive();
    lbc.remove(scores, 0.3, 3.0, alive);
    std::vector<double> found(scores.size(), 0.0);
    lbc.add_score_gradients(g.data(), w.data(), alive, found.data());

    const auto loss = [&](const std::vector<double>& alpha) {
      double sum = 0.0;
      for (int64_t c = 0; c < lbc.cells(); ++c) {
        const Cell cell = grouping.cell(c);
        for (int64_t gr = 0; gr < lbc.groups(); ++gr) {
          const Group group = grouping.group(gr);
          const Candidates table(pattern.keep(), group.length, false);
          for (int i = 0; i < table.count(); ++i) {
            const int64_t row = c * lbc.groups() + gr;
            if (!alive.at(row, i)) continue;
            for (int k = 0; k < group.length; ++k) {
              if (((table.members(i) >> k) & 1) == 0) continue;
              for (int64_t r = 0; r < cell.rows; ++r) {
                const auto at =
                    static_cast<size_t>((cell.first_row + r * cell.step) * shape.cols() +
                                        group.first_col + k * group.step);
                sum += alpha[static_cast<size_t>(row * lbc.candidates() + i)] * g[at] * w[at];
              }
            }
          }
        }
      }
      return sum;
    };
    std::vector<double> alpha(scores.begin(), scores.end());
    for (size_t i = 0; i < alpha.size(); i += 7) {
      const double kept = alpha[i];
      alpha[i] = kept + 0.5;
      const double up = loss(alpha);
      alpha[i] = kept - 0.5;
      const double down = loss(alpha);
      alpha[i] = kept;
      EXPECT_NEAR(found[i], up - down, 1e-9) << text << " " << i;
    }
  }
}

}  // namespace
}  // namespace weft::test
