// Patterns that weft chooses by itself, against all subsets and all choices.
#include "weft/prune/auto_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tests/weights.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

TEST(AutoPattern, TheChanceToFitIsThatOfAllSubsets) {
  for (const int group : {1, 4, 8}) {
    for (const double zeros : {0.0, 0.1, 0.5, 0.65, 0.9, 1.0}) {
      for (int keep = 0; keep <= group; ++keep) {
        double expected = 0.0;
        for (uint32_t nonzero = 0; nonzero < 1u << group; ++nonzero) {
          const int count = std::popcount(nonzero);
          if (count > keep) continue;
          expected += std::pow(1 - zeros, count) * std::pow(zeros, group - count);
        }
        EXPECT_NEAR(chance_to_fit(group, keep, zeros), expected, 1e-12)
            << keep << ":" << group << " at " << zeros;
      }
    }
  }
  EXPECT_NEAR(chance_to_fit(64, 40, 0.5), 0.983617, 1e-6);
  EXPECT_TRUE(contains(message_of([] { chance_to_fit(4, 5, 0.5); }), "5 of 4"));
  EXPECT_TRUE(contains(message_of([] { chance_to_fit(4, 2, 1.5); }), "1.5"));
}

TEST(AutoPattern, KeepIsTheLeastThatFitsOftenEnough) {
  EXPECT_EQ(keep_for_zeros(8, 0.0, 0.95), 8);
  EXPECT_EQ(keep_for_zeros(8, 1.0, 0.95), 1);
  EXPECT_EQ(keep_for_zeros(4, 0.5, 0.5), 2);     // 11 of 16 have at most 2
  EXPECT_EQ(keep_for_zeros(4, 0.5, 0.6875), 3);  // not more than 11 of 16
  EXPECT_EQ(keep_for_zeros(8, 0.65, 0.95), 5);   // 97.5%; at most 4: 89.4%
  for (const double confidence : {0.0, 0.5, 0.95, 0.999}) {
    for (const int group : {2, 4, 8, 16, 64}) {
      int before = group;
      for (double zeros = 0.0; zeros <= 1.0; zeros += 0.05) {
        const int keep = keep_for_zeros(group, zeros, confidence);
        EXPECT_LE(keep, before) << "more zeros never need more";
        EXPECT_GE(keep, 1);
        EXPECT_LE(keep, keep_for_zeros(group, zeros, 0.9999));
        if (keep < group) {
          EXPECT_GT(chance_to_fit(group, keep, zeros), confidence);
        }
        if (keep > 1) {
          EXPECT_LE(chance_to_fit(group, keep - 1, zeros), confidence);
        }
        before = keep;
      }
    }
  }
  EXPECT_TRUE(contains(message_of([] { keep_for_zeros(8, 0.5, 1.0); }), "confidence 1"));
}

// Errors that fall with keep, by less and less; or any that fall.
std::vector<KeepCosts> draw_costs(size_t layers, int group, bool convex, uint64_t stream) {
  std::vector<KeepCosts> costs;
  const Rng rng(test_seed(), stream);
  for (uint64_t i = 0; i < layers; ++i) {
    std::vector<double> falls;
    for (int k = 0; k + 1 < group; ++k) {
      falls.push_back(rng.uniform(100 * i + static_cast<uint64_t>(k)));
    }
    if (convex) std::ranges::sort(falls);
    KeepCosts one{{}, {0.0}};
    for (const double fall : falls) one.errors.push_back(one.errors.back() + fall);
    std::ranges::reverse(one.errors);
    // Every third layer has short groups only: from some keep on all of it stays.
    const auto rows = static_cast<int64_t>(1 + rng.below(100 * i + 99, 50));
    const int64_t tail = i % 3 == 2 ? group / 2 : 0;
    for (int64_t keep = 1; keep <= group; ++keep) {
      one.kept.push_back(rows * (tail > 0 ? std::min(keep, tail) : keep));
      if (tail > 0 && keep >= tail) one.errors[static_cast<size_t>(keep - 1)] = 0.0;
    }
    costs.push_back(one);
  }
  return costs;
}

double weights_kept(const std::vector<KeepCosts>& costs, const std::vector<int>& keeps) {
  double kept = 0.0;
  for (size_t i = 0; i < costs.size(); ++i) {
    kept += static_cast<double>(costs[i].kept[static_cast<size_t>(keeps[i] - 1)]);
  }
  return kept;
}

double total_error(const std::vector<KeepCosts>& costs, const std::vector<int>& keeps) {
  double sum = 0.0;
  for (size_t i = 0; i < costs.size(); ++i)
    sum += costs[i].errors[static_cast<size_t>(keeps[i] - 1)];
  return sum;
}

// The least error of all choices that keep at most so many.
double least_error(const std::vector<KeepCosts>& costs, double most) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<int> keeps(costs.size(), 1);
  while (true) {
    if (weights_kept(costs, keeps) <= most * (1 + 1e-12)) {
      least = std::min(least, total_error(costs, keeps));
    }
    size_t i = 0;
    while (i < keeps.size() && keeps[i] == static_cast<int>(costs[i].errors.size())) keeps[i++] = 1;
    if (i == keeps.size()) return least;
    ++keeps[i];
  }
}

TEST(AutoPattern, ABudgetIsKeptAndSpentAsWellAsCanBe) {
  for (uint64_t stream = 200; stream < 230; ++stream) {
    const bool convex = stream % 2 == 0;
    const int group = stream % 3 == 0 ? 4 : 8;
    const std::vector<KeepCosts> costs = draw_costs(4, group, convex, stream);
    double all = 0.0;
    for (const KeepCosts& one : costs) all += static_cast<double>(one.kept.back());
    for (const double density : {0.01, 0.2, 0.3, 0.5, 0.77, 0.95, 1.0}) {
      SCOPED_TRACE(fmt::format("density {}, seed {} stream {}", density, test_seed(), stream));
      const std::vector<int> keeps = keeps_for_density(costs, density);
      const double kept = weights_kept(costs, keeps);
      const bool least = std::ranges::all_of(keeps, [](int keep) { return keep == 1; });
      EXPECT_TRUE(kept <= density * all * (1 + 1e-12) || least);
      // What is kept is spent so well that nothing that keeps as many or fewer does better.
      EXPECT_LE(total_error(costs, keeps), least_error(costs, kept) + 1e-12);
      if (density == 1.0) {
        EXPECT_EQ(keeps, std::vector<int>(costs.size(), group));
      }
    }
  }
  EXPECT_TRUE(contains(message_of([] { keeps_for_density({}, 0.0); }), "density 0"));
  EXPECT_TRUE(contains(message_of([] { keeps_for_density({}, 1.5); }), "density 1.5"));
}

}  // namespace
}  // namespace weft
