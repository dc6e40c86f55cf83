// The sample of one group: its distribution by enumerating every outcome.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/weights.h"
#include "weft/estimate/mvue.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

constexpr double kUnit = kProbabilityUnit;
using Group = std::vector<float>;

// The three regimes of 2:4 (one entry may outweigh the others, and by how much), and others.
const std::vector<Group> kGroups = {{1, 1.2f, 1.5f, 2},     {.1f, 1, 1.2f, 2}, {.1f, .2f, .3f, 2},
                                    {-3, 0, 2, 1},          {1, 1, 1, 1},      {2, -2, 0, 1e-6f},
                                    {1, 1e-20f, 1, 1e-30f}, {4, 1, 1, 2}};

// A group as drawn, in all kinds, times a power of ten.
Group draw_group(size_t size, Kind kind, uint64_t stream) {
  const Rng rng(test_seed(), stream);
  Group group(size);
  for (size_t i = 0; i < size; ++i) group[i] = draw<float>(kind, rng, i);
  return group;
}

int nonzeros(const Group& group) {
  return static_cast<int>(std::ranges::count_if(group, [](float a) { return a != 0; }));
}

struct Outcome {
  double probability;
  std::vector<float> scales;
};

// All outcomes of the systematic draw: they change where u passes the end of an entry, modulo 1. At
// both ends of each stretch the draw must be the same.
std::vector<Outcome> outcomes(const Group& group, int keep) {
  const std::vector<uint32_t> units = inclusion_units(group, keep);
  std::set<uint32_t> ends = {0, kProbabilityUnit};
  uint64_t sum = 0;
  for (const uint32_t unit : units) {
    sum += unit;
    ends.insert(static_cast<uint32_t>(sum % kProbabilityUnit));
  }
  std::vector<Outcome> all;
  for (auto begin = ends.begin(); std::next(begin) != ends.end(); ++begin) {
    const uint32_t last = *std::next(begin) - 1;
    const auto at = [&](uint32_t u) {
      return scales_of_group(group, keep, Sampler::kExact, {u << 8 | (u & 0xff), 0});
    };
    all.push_back({(last + 1 - *begin) / kUnit, at(*begin)});
    EXPECT_EQ(all.back().scales, at(last));
  }
  return all;
}

// All outcomes of two draws: first i, then j, by a uniform in the middle of their stretches.
std::vector<Outcome> two_draw_outcomes(const Group& group) {
  if (nonzeros(group) <= 2) {
    return {{1, scales_of_group(group, 2, Sampler::kTwoDraw, {0x12345678, 0x9abcdef0})}};
  }
  const std::vector<uint32_t> t = inclusion_units(group, 1);
  std::vector<Outcome> all;
  double first_begin = 0;
  for (size_t i = 0; i < group.size(); first_begin += t[i++]) {
    if (t[i] == 0) continue;
    const double rest = kUnit - t[i];
    double begin = 0;
    for (size_t j = 0; j < group.size(); ++j) {
      if (j == i || t[j] == 0) continue;
      const auto word = [](double share) { return static_cast<uint32_t>(share * 0x1p32); };
      const std::array<uint32_t, 2> words = {word((first_begin + 0.5 * t[i]) / kUnit),
                                             word((begin + 0.5 * t[j]) / rest)};
      all.push_back(
          {t[i] / kUnit * t[j] / rest, scales_of_group(group, 2, Sampler::kTwoDraw, words)});
      // Stretches of a few units may be missed by the uniform of 24 bits.
      if (t[i] > 100 && t[j] > 100 * rest / kUnit) {
        EXPECT_NE(all.back().scales[i], 0) << "first " << i << ", then " << j;
        EXPECT_NE(all.back().scales[j], 0) << "first " << i << ", then " << j;
      }
      begin += t[j];
    }
  }
  return all;
}

struct Moments {
  double probability = 0;
  double kept = 0;
  std::vector<double> mean;
  double variance = 0;  // summed over the entries
};

Moments moments(const Group& group, const std::vector<Outcome>& all) {
  Moments m;
  m.mean.resize(group.size());
  for (const Outcome& outcome : all) {
    m.probability += outcome.probability;
    for (size_t i = 0; i < group.size(); ++i) {
      const double value = double{group[i]} * double{outcome.scales[i]};
      m.kept += outcome.scales[i] != 0 ? outcome.probability : 0;
      m.mean[i] += outcome.probability * value;
      m.variance += outcome.probability * (value - group[i]) * (value - group[i]);
    }
  }
  return m;
}

// π = min(1, c |a|) in double, by trying how many are certain.
std::vector<double> best_inclusion(const Group& group, int keep) {
  std::vector<double> size(group.size());
  for (size_t i = 0; i < size.size(); ++i) size[i] = std::abs(double{group[i]});
  std::vector<double> sorted = size;
  std::ranges::sort(sorted, std::greater<>());
  double c = std::numeric_limits<double>::infinity();
  for (int certain = 0; certain < keep; ++certain) {
    double rest = 0;
    for (size_t i = sorted.size(); i-- > static_cast<size_t>(certain);) rest += sorted[i];
    c = (keep - certain) / rest;  // infinite if there is no more
    if (c * sorted[static_cast<size_t>(certain)] <= 1) break;
  }
  for (double& a : size) a = a == 0 ? 0 : std::min(1.0, c * a);
  return size;
}

double variance_of(const Group& group, const std::vector<double>& inclusion) {
  double sum = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    if (group[i] != 0) sum += double{group[i]} * group[i] * (1 / inclusion[i] - 1);
  }
  return sum;
}

double squares(const Group& group) {
  double sum = 0;
  for (const float a : group) sum += double{a} * a;
  return sum;
}

double magnitudes(const Group& group) {
  double sum = 0;
  for (const float a : group) sum += std::abs(double{a});
  return sum;
}

std::string str(const Group& group) { return fmt::format("({})", fmt::join(group, ", ")); }

// Calls body(group, keep) for groups of many sizes and kinds.
template <typename Body>
void for_each_group(Body body) {
  for (const Group& group : kGroups) {
    for (const int keep : {1, 2, 3}) body(group, keep);
  }
  uint64_t stream = 0;
  for (const auto& [keep, size] : std::vector<std::pair<int, size_t>>{{1, 2},
                                                                      {2, 4},
                                                                      {1, 4},
                                                                      {3, 4},
                                                                      {4, 8},
                                                                      {2, 8},
                                                                      {5, 7},
                                                                      {2, 3},
                                                                      {8, 16},
                                                                      {1, 64},
                                                                      {32, 64},
                                                                      {63, 64}}) {
    for (const Kind kind : kAllKinds) {
      for (int repeat = 0; repeat < 8; ++repeat) {
        const Group group = draw_group(size, kind, ++stream);
        SCOPED_TRACE(fmt::format("{}, seed {} stream {}", name_of(kind), test_seed(), stream));
        body(group, keep);
      }
    }
  }
}

// ---- π

TEST(Inclusion, SumsToKeepAndIsWithinItsBounds) {
  for_each_group([](const Group& group, int keep) {
    SCOPED_TRACE(fmt::format("{} of {}", keep, str(group)));
    const std::vector<uint32_t> units = inclusion_units(group, keep);
    uint64_t sum = 0;
    const int there = nonzeros(group);
    for (size_t i = 0; i < units.size(); ++i) {
      sum += units[i];
      EXPECT_LE(units[i], kProbabilityUnit);
      if (group[i] != 0) {
        EXPECT_GE(units[i], there <= keep ? kProbabilityUnit : 1u);
      } else {
        EXPECT_TRUE(units[i] == 0 || (units[i] == kProbabilityUnit && there < keep));
      }
    }
    EXPECT_EQ(sum, uint64_t{kProbabilityUnit} * static_cast<uint64_t>(keep));
  });
}

TEST(Inclusion, IsTheWaterLevel) {
  for_each_group([](const Group& group, int keep) {
    if (nonzeros(group) <= keep) return;
    SCOPED_TRACE(fmt::format("{} of {}", keep, str(group)));
    const std::vector<uint32_t> units = inclusion_units(group, keep);
    const std::vector<double> best = best_inclusion(group, keep);
    // Rounding to a unit, one unit at least for each, and floats that sum: all of it some units per
    // entry, which the last entries take up together.
    const double entries = static_cast<double>(group.size());
    for (size_t i = 0; i < units.size(); ++i) {
      EXPECT_NEAR(units[i], best[i] * kUnit, 2 * entries + entries * best[i]) << "at " << i;
    }
  });
}

TEST(Inclusion, RefusesWhatIsNoGroup) {
  const std::vector<float> long_one(65, 1.0f);
  EXPECT_TRUE(contains(message_of([&] { inclusion_units(long_one, 2); }), "65"));
  EXPECT_TRUE(contains(message_of([&] { inclusion_units(kGroups[0], 0); }), "0 to keep"));
}

// ---- every outcome

TEST(Exact, HasTheGroupAsItsMean) {
  for_each_group([](const Group& group, int keep) {
    SCOPED_TRACE(fmt::format("{} of {}", keep, str(group)));
    const Moments m = moments(group, outcomes(group, keep));
    EXPECT_EQ(m.probability, 1);
    EXPECT_EQ(m.kept, keep);
    for (size_t i = 0; i < group.size(); ++i) {  // 1/π is a float
      EXPECT_NEAR(m.mean[i], group[i], 0x1p-24 * std::abs(double{group[i]})) << "at " << i;
    }
  });
}

TEST(Exact, KeepsWhatItShouldInEveryOutcome) {
  for_each_group([](const Group& group, int keep) {
    SCOPED_TRACE(fmt::format("{} of {}", keep, str(group)));
    for (const Outcome& outcome : outcomes(group, keep)) {
      EXPECT_EQ(std::ranges::count_if(outcome.scales, [](float s) { return s != 0; }), keep);
      for (const float scale : outcome.scales) EXPECT_TRUE(scale == 0 || scale >= 1);
    }
  });
}

TEST(Exact, HasTheLeastVariance) {
  for_each_group([](const Group& group, int keep) {
    SCOPED_TRACE(fmt::format("{} of {}", keep, str(group)));
    const double variance = moments(group, outcomes(group, keep)).variance;
    const double least = variance_of(group, best_inclusion(group, keep));
    const double slack = 1e-5 * magnitudes(group) * magnitudes(group);
    EXPECT_NEAR(variance, least, slack);
    // Of a uniform draw, π = keep / size.
    const double uniform = (static_cast<double>(group.size()) / keep - 1) * squares(group);
    EXPECT_LE(variance, uniform + slack);
  });
}

// The closed forms of methods.md, for sorted magnitudes a <= b <= c <= d.
TEST(Exact, HasTheClosedFormsOf2Of4And1Of2) {
  for (Group group : kGroups) {
    std::ranges::sort(group, {}, [](float a) { return std::abs(a); });
    const double a = std::abs(group[0]), b = std::abs(group[1]), c = std::abs(group[2]);
    const double d = std::abs(group[3]), sum = a + b + c + d;
    const double closed = d <= a + b + c ? sum * sum / 2 - squares(group)
                                         : (a + b + c) * (a + b + c) - (a * a + b * b + c * c);
    EXPECT_NEAR(moments(group, outcomes(group, 2)).variance, closed, 1e-6 * sum * sum)
        << str(group);
    const Group pair = {group[1], group[3]};
    EXPECT_NEAR(moments(pair, outcomes(pair, 1)).variance, 2 * b * d, 1e-6 * sum * sum);
  }
}

TEST(Exact, IsNoWorseThanTwoDraws) {
  for_each_group([](const Group& group, int keep) {
    if (group.size() != 4 || keep != 2) return;
    SCOPED_TRACE(str(group));
    const double exact = moments(group, outcomes(group, 2)).variance;
    const double two_draw = moments(group, two_draw_outcomes(group)).variance;
    const double slack = 1e-5 * magnitudes(group) * magnitudes(group);
    EXPECT_LE(exact, two_draw + slack);
    EXPECT_LE(two_draw, 2.1 * exact + slack);
  });
}

// Relative to the squares, on average: 0.475 and 0.504, as published.
TEST(BothSamplers, HaveTheirKnownVarianceOnGaussianData) {
  double exact = 0, two_draw = 0, all = 0;
  for (uint64_t stream = 0; stream < 5000; ++stream) {
    const Group group = draw_group(4, Kind::kGaussian, 10000 + stream);
    exact += moments(group, outcomes(group, 2)).variance;
    two_draw += moments(group, two_draw_outcomes(group)).variance;
    all += squares(group);
  }
  EXPECT_NEAR(exact / all, 0.475, 0.01);
  EXPECT_NEAR(two_draw / all, 0.504, 0.01);
}

TEST(TwoDraw, HasTheGroupAsItsMean) {
  for_each_group([](const Group& group, int keep) {
    if (group.size() > 4 || group.size() < 3 || keep != 2) return;
    SCOPED_TRACE(str(group));
    const std::vector<Outcome> all = two_draw_outcomes(group);
    const Moments m = moments(group, all);
    EXPECT_NEAR(m.probability, 1, 1e-12);
    EXPECT_NEAR(m.kept, 2, 1e-6);
    for (const Outcome& outcome : all) {
      EXPECT_EQ(std::ranges::count_if(outcome.scales, [](float s) { return s != 0; }), 2);
    }
    const std::vector<uint32_t> t = inclusion_units(group, 1);
    for (size_t i = 0; i < group.size(); ++i) {
      // Entries of a few units are kept too rarely for this enumeration to meet them.
      if (nonzeros(group) > 2 && t[i] < 1000) continue;
      EXPECT_NEAR(m.mean[i], group[i], 1e-4 * std::abs(double{group[i]})) << "at " << i;
    }
  });
}

TEST(TwoDraw, HasTheInclusionOfTheFormula) {
  for (const Group& group : kGroups) {
    if (nonzeros(group) <= 2) continue;
    const double sum = magnitudes(group);
    for (const Outcome& outcome : two_draw_outcomes(group)) {
      for (size_t i = 0; i < 4; ++i) {
        const double a = std::abs(double{group[i]});
        if (outcome.scales[i] == 0 || a < 1e-5) continue;
        double p = a / sum;
        for (size_t j = 0; j < 4; ++j) {
          const double other = std::abs(double{group[j]});
          if (j != i) p += a * other / sum / (sum - other);
        }
        EXPECT_NEAR(outcome.scales[i], 1 / p, 1e-4 / p) << str(group) << " at " << i;
      }
    }
  }
}

TEST(BothSamplers, LeaveZerosAndLonelyEntriesAlone) {
  for (const Sampler sampler : {Sampler::kExact, Sampler::kTwoDraw}) {
    for (const uint32_t word : {0u, 1u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
      const auto scales = [&](const Group& group) {
        return scales_of_group(group, 2, sampler, {word, ~word});
      };
      EXPECT_EQ(scales({0, 0, 0, 0}), (Group{1, 1, 0, 0}));
      EXPECT_EQ(scales({0, 0, -7, 0}), (Group{1, 0, 1, 0}));
      EXPECT_EQ(scales({0, 3e-45f, 0, 3e38f}), (Group{0, 1, 0, 1}));
      EXPECT_EQ(scales({5}), (Group{1}));
      EXPECT_EQ(scales({5, 0}), (Group{1, 1}));
    }
  }
}

TEST(BothSamplers, KeepWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const Sampler sampler : {Sampler::kExact, Sampler::kTwoDraw}) {
    for (const uint32_t word : {0u, 1u, 0x40000000u, 0x80000000u, 0xffffffffu}) {
      const auto scales = [&](const Group& group) {
        return scales_of_group(group, 2, sampler, {word, ~word});
      };
      EXPECT_EQ(scales({1, nan, 1e30f, 2}), (Group{1, 1, 0, 0}));
      EXPECT_EQ(scales({1, 3, -infinity, nan}), (Group{0, 0, 1, 1}));
      const Group many = scales({nan, 3, -infinity, nan});
      EXPECT_EQ(many[1], 0);
      EXPECT_EQ(std::ranges::count(many, 0.0f), 2);
    }
  }
}

TEST(Exact, CopesWithEveryMagnitudeThereIs) {
  const std::vector<Group> groups = {
      {1e38f, 1e-38f, 1e-38f, 1e-38f},
      {3e38f, 3e38f, 3e38f, 3e38f},
      {1e38f, 1, 1e-38f, 1e-45f},
      {1e-45f, 1e-45f, 1e-45f, 3e-45f},
      {std::numeric_limits<float>::max(), 1e-45f, 1e-45f, std::numeric_limits<float>::min()}};
  for (const Group& group : groups) {
    for (const int keep : {1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} of {}", keep, str(group)));
      const std::vector<uint32_t> units = inclusion_units(group, keep);
      const std::vector<double> best = best_inclusion(group, keep);
      for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(units[i], best[i] * kUnit, 8) << "at " << i;
      const Moments m = moments(group, outcomes(group, keep));
      EXPECT_EQ(m.kept, keep);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_NEAR(m.mean[i], group[i], 0x1p-24 * std::abs(double{group[i]}));
      }
    }
  }
}

TEST(Samplers, HaveNames) {
  EXPECT_EQ(parse_sampler("mvue"), Sampler::kExact);
  EXPECT_EQ(parse_sampler("mvue-two-draw"), Sampler::kTwoDraw);
  const std::string message = message_of([] { parse_sampler("mvu"); });
  EXPECT_TRUE(contains(message, "'mvu'") && contains(message, "mvue and mvue-two-draw"));
}

}  // namespace
}  // namespace weft
