// Sampling gradients: the distribution by enumerating every outcome of a group, the draws against
// the definition of their random numbers, and the same scales whatever the instruction set, the
// threads, and the way the work is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/weights.h"
#include "weft/core/isa.h"
#include "weft/estimate/mvue.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

constexpr double kUnit = kProbabilityUnit;
using Group = std::vector<float>;

const std::vector<std::string> kPatterns = {"1:2", "2:4",   "1:4",   "3:4",    "4:8",  "2:8",
                                            "5:7", "1:16",  "8:16",  "32:64",  "1:64", "63:64",
                                            "1:1", "64:64", "2:4x2", "1:4x32", "3:5x4"};

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

// ---- gradients

struct GradientMatrix {
  int64_t tokens, outs, stride;
  std::vector<float> values;

  GradientMatrix(int64_t tokens, int64_t outs, Kind kind, uint64_t stream, int64_t gap = 0)
      : tokens(tokens), outs(outs), stride(outs + gap) {
    const Rng rng(test_seed(), stream);
    values.resize(static_cast<size_t>(tokens * stride));
    for (size_t i = 0; i < values.size(); ++i) values[i] = draw<float>(kind, rng, i);
  }
  MatrixView<const float> view() const { return {values.data(), tokens, outs, stride}; }
};

std::vector<float> scales_of(MatrixView<const float> g, const SampleOptions& options) {
  std::vector<float> scales(static_cast<size_t>(g.rows * g.cols), -1.0f);
  sample_scales(g, options, {scales.data(), g.rows, g.cols});
  return scales;
}

SampleOptions options_of(const std::string& pattern, uint64_t step = 3) {
  SampleOptions options{Pattern::parse(pattern)};
  options.key = {test_seed(), step, 5, 1};
  return options;
}

// The magnitude of a cell at a token: the root of the mean square of its members.
float cell_magnitude(MatrixView<const float> g, const Pattern& pattern, int64_t t, int64_t out) {
  if (pattern.share() == 1) return g.at(t, out);
  const int64_t first = out / pattern.block() * pattern.block() + out % pattern.group();
  double sum = 0, members = 0;
  for (int64_t m = 0; m < pattern.share(); ++m) {
    const int64_t o = first + m * pattern.group();
    if (o >= g.cols) break;
    sum += double{g.at(t, o)} * g.at(t, o);
    ++members;
  }
  const auto norm = static_cast<float>(std::sqrt(sum * (1 / members)));
  return sum > 0 ? std::max(norm, std::numeric_limits<float>::denorm_min()) : norm;
}

// Group by group, with the random numbers of mvue.h.
std::vector<float> naive_scales(MatrixView<const float> g, const SampleOptions& options) {
  const Pattern& p = options.pattern;
  const uint64_t key = Rng(options.key.seed, options.key.step)
                           .bits(uint64_t{options.key.layer} << 32 | options.key.call);
  std::vector<float> scales(static_cast<size_t>(g.rows * g.cols));
  for (int64_t first = 0; first < g.rows; first += p.group()) {
    const auto group = static_cast<uint64_t>(options.first_group + first / p.group());
    const int64_t rows = std::min<int64_t>(p.group(), g.rows - first);
    for (int64_t o = 0; o < g.cols; ++o) {
      const int64_t in_g = p.share() == 1 ? o : o / p.block() * p.group() + o % p.group();
      const auto cell = static_cast<uint64_t>(options.first_cell + in_g);
      std::array<uint32_t, 2> words = {Rng(key, group / 4).words(cell)[group % 4], 0};
      if (options.sampler == Sampler::kTwoDraw) {
        const auto drawn = Rng(key, group / 2).words(cell);
        words = {drawn[group % 2 * 2], drawn[group % 2 * 2 + 1]};
      }
      Group entries;
      for (int64_t i = 0; i < rows; ++i) entries.push_back(cell_magnitude(g, p, first + i, o));
      const Group found = scales_of_group(entries, p.keep(), options.sampler, words);
      for (int64_t i = 0; i < rows; ++i) {
        scales[static_cast<size_t>((first + i) * g.cols + o)] = found[static_cast<size_t>(i)];
      }
    }
  }
  return scales;
}

TEST(Scales, AreThoseOfEachGroup) {
  uint64_t stream = 100;
  for (const std::string& text : kPatterns) {
    const Pattern pattern = Pattern::parse(text);
    const int64_t group = pattern.group(), block = pattern.block();
    for (const auto& [tokens, outs] :
         std::vector<std::pair<int64_t, int64_t>>{{0, 5},
                                                  {5, 0},
                                                  {1, 1},
                                                  {group, 7},
                                                  {group + 1, 8},
                                                  {4 * group - 1, 9},
                                                  {9 * group, block + 1},
                                                  {2 * group, 2 * block + 3},
                                                  {5 * group, 65}}) {
      SampleOptions options = options_of(text);
      // Near to the beginning and far from it, where every bit of the counters is in use.
      options.first_group = static_cast<int64_t>(stream % 5) << (stream % 2 == 0 ? 0 : 40);
      options.first_cell = static_cast<int64_t>(stream % 3) << (stream % 7 == 0 ? 30 : 0);
      const Kind kind = kAllKinds[stream % kAllKinds.size()];
      const GradientMatrix g(tokens, outs, kind, ++stream, 3);
      SCOPED_TRACE(fmt::format("{} on {} x {}, {}, seed {} stream {}", text, tokens, outs,
                               name_of(kind), test_seed(), stream));
      ASSERT_EQ(scales_of(g.view(), options), naive_scales(g.view(), options));
      if (text.starts_with("2:4")) {
        options.sampler = Sampler::kTwoDraw;
        ASSERT_EQ(scales_of(g.view(), options), naive_scales(g.view(), options));
      }
    }
  }
}

TEST(Scales, AreTheSameOnEveryInstructionSet) {
  struct Guard {
    ~Guard() { restore_isa(); }
  } guard;
  for (const std::string& text : kPatterns) {
    for (const Kind kind : kAllKinds) {
      for (const Sampler sampler : {Sampler::kExact, Sampler::kTwoDraw}) {
        SampleOptions options = options_of(text);
        if (sampler == Sampler::kTwoDraw && !text.starts_with("2:4")) continue;
        options.sampler = sampler;
        GradientMatrix g(3 * options.pattern.group() + 2, 83, kind, 7);
        g.values[10] = std::numeric_limits<float>::quiet_NaN();
        g.values[11] = std::numeric_limits<float>::infinity();
        std::vector<float> first;
        for (const std::string& isa : available_isas()) {
          force_isa(isa);
          ASSERT_EQ(current_isa(), isa);
          const std::vector<float> scales = scales_of(g.view(), options);
          if (first.empty()) first = scales;
          ASSERT_EQ(scales, first) << text << " on " << isa << ", " << name_of(kind);
        }
      }
    }
  }
}

TEST(Scales, DoNotDependOnThreadsOrHowTheWorkIsCut) {
  const int before = threads();
  for (const std::string text : {"2:4", "5:7", "2:4x2"}) {
    const SampleOptions options = options_of(text);
    const Pattern& p = options.pattern;
    const GradientMatrix g(700, 200, Kind::kGaussian, 8);
    set_threads(1);
    const std::vector<float> whole = scales_of(g.view(), options);
    set_threads(3);
    EXPECT_EQ(scales_of(g.view(), options), whole);
    // The part from some group and some block on.
    const int64_t token = 5 * p.group(), out = 3 * p.block();
    SampleOptions part = options;
    part.first_group = 5;
    part.first_cell = sampled_cells(out, p);
    const auto g_part = g.view().rows_from(token, 700 - token).cols_from(out, 200 - out);
    const std::vector<float> scales = scales_of(g_part, part);
    for (int64_t t = 0; t < g_part.rows; ++t) {
      for (int64_t o = 0; o < g_part.cols; ++o) {
        ASSERT_EQ(scales[static_cast<size_t>(t * g_part.cols + o)],
                  whole[static_cast<size_t>((token + t) * 200 + out + o)]);
      }
    }
  }
  set_threads(before);
}

TEST(Scales, DifferWithEveryPartOfTheKey) {
  const GradientMatrix g(64, 16, Kind::kEqual, 9);
  const SampleOptions options = options_of("2:4");
  std::set<std::vector<float>> seen = {scales_of(g.view(), options)};
  const auto add = [&](auto change) {
    SampleOptions other = options;
    change(other);
    EXPECT_TRUE(seen.insert(scales_of(g.view(), other)).second);
    EXPECT_FALSE(seen.insert(scales_of(g.view(), other)).second);
  };
  add([](SampleOptions& o) { o.key.seed ^= uint64_t{1} << 40; });
  add([](SampleOptions& o) { o.key.step += uint64_t{1} << 33; });
  add([](SampleOptions& o) { ++o.key.step; });
  add([](SampleOptions& o) { ++o.key.layer; });
  add([](SampleOptions& o) { ++o.key.call; });
  add([](SampleOptions& o) { o.first_group = 1; });
  add([](SampleOptions& o) { o.first_cell = 1; });
}

TEST(Scales, GroupAlongTokens) {
  // 2:4 keeps 2 of each 4 tokens of every output; across outputs anything.
  const GradientMatrix g(40, 12, Kind::kGaussian, 11);
  const std::vector<float> scales = scales_of(g.view(), options_of("2:4"));
  bool crowded_across = false;
  for (int64_t o = 0; o < 12; ++o) {
    for (int64_t first = 0; first < 40; first += 4) {
      int kept = 0;
      for (int64_t t = first; t < first + 4; ++t) kept += scales[size_t(t * 12 + o)] != 0;
      EXPECT_EQ(kept, 2);
    }
  }
  for (int64_t t = 0; t < 40; ++t) {
    for (int64_t first = 0; first < 12; first += 4) {
      int kept = 0;
      for (int64_t o = first; o < first + 4; ++o) kept += scales[size_t(t * 12 + o)] != 0;
      crowded_across |= kept > 2;
    }
  }
  EXPECT_TRUE(crowded_across);
}

TEST(Scales, OfAFullPatternAreOne) {
  for (const std::string text : {"4:4", "1:1", "64:64", "4:4x2"}) {
    const GradientMatrix g(70, 9, Kind::kWide, 12);
    EXPECT_EQ(scales_of(g.view(), options_of(text)), std::vector<float>(70 * 9, 1.0f)) << text;
  }
}

TEST(Scales, AreSharedByTheMembersOfACell) {
  const Pattern pattern = Pattern::parse("2:4x2");
  const GradientMatrix g(32, 22, Kind::kGaussian, 13);
  const std::vector<float> scales = scales_of(g.view(), options_of("2:4x2"));
  for (int64_t t = 0; t < 32; ++t) {
    for (int64_t o = 0; o + 4 < 22; ++o) {
      if (o % 8 >= 4) continue;
      EXPECT_EQ(scales[size_t(t * 22 + o)], scales[size_t(t * 22 + o + 4)]);
    }
  }
  EXPECT_EQ(sampled_cells(22, pattern), 12);
  EXPECT_EQ(sampled_cells(18, pattern), 10);
  EXPECT_EQ(sampled_cells(16, pattern), 8);
  EXPECT_EQ(sampled_cells(22, Pattern(2, 4)), 22);
}

// The gradient of the weights, Gᵀ X, on average over many draws; the distance to it shrinks as one
// over the root of their number.
TEST(Scales, HaveTheGradientAsTheirMean) {
  for (const std::string text : {"2:4", "1:4", "4:8", "2:4x2", "mvue-two-draw"}) {
    SampleOptions options = options_of(text[0] == 'm' ? "2:4" : text);
    if (text[0] == 'm') options.sampler = parse_sampler(text);
    constexpr int64_t kTokens = 24, kOuts = 16, kIns = 3;
    const GradientMatrix g(kTokens, kOuts, Kind::kGaussian, 14);
    const GradientMatrix x(kTokens, kIns, Kind::kGaussian, 15);
    constexpr int kDraws = 4096;
    std::vector<double> sum(kOuts * kIns), exact(kOuts * kIns);
    double far = 0, near = 0;
    const auto distance = [&](int draws) {
      double squares = 0;
      for (size_t i = 0; i < sum.size(); ++i) {
        squares += (sum[i] / draws - exact[i]) * (sum[i] / draws - exact[i]);
      }
      return std::sqrt(squares);
    };
    for (int draw = 0; draw <= kDraws; ++draw) {
      std::vector<float> scales(kTokens * kOuts, 1.0f);
      options.key.step = static_cast<uint64_t>(draw);
      if (draw > 0) sample_scales(g.view(), options, {scales.data(), kTokens, kOuts});
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t o = 0; o < kOuts; ++o) {
          for (int64_t i = 0; i < kIns; ++i) {
            (draw == 0 ? exact : sum)[size_t(o * kIns + i)] +=
                double{g.view().at(t, o)} * scales[size_t(t * kOuts + o)] * x.view().at(t, i);
          }
        }
      }
      if (draw == 16) far = distance(draw);
      if (draw == kDraws) near = distance(draw);
    }
    // 16 times nearer on average, with 48 numbers: a biased sample would stay where it is.
    EXPECT_LT(near, far / 8) << text << ", seed " << test_seed();
    EXPECT_GT(near, far / 32) << text << ", seed " << test_seed();
  }
}

TEST(Scales, RefuseWrongCalls) {
  const GradientMatrix g(8, 4, Kind::kGaussian, 16);
  std::vector<float> scales(32);
  const auto message = [&](const SampleOptions& options, MatrixView<float> to) {
    return message_of([&] { sample_scales(g.view(), options, to); });
  };
  SampleOptions options = options_of("4:8");
  options.sampler = Sampler::kTwoDraw;
  EXPECT_TRUE(contains(message(options, {scales.data(), 8, 4}), "2:4 only, not 4:8"));
  options = options_of("2:4");
  EXPECT_TRUE(contains(message(options, {scales.data(), 4, 8}), "4 x 8"));
  EXPECT_TRUE(contains(message(options, {nullptr, 8, 4}), "null"));
  options.first_group = -1;
  EXPECT_TRUE(contains(message(options, {scales.data(), 8, 4}), "first group -1"));
  options.first_group = 0;
  options.first_cell = int64_t{1} << 32;
  EXPECT_TRUE(contains(message(options, {scales.data(), 8, 4}), "2^32"));
}

TEST(Samplers, HaveNames) {
  EXPECT_EQ(parse_sampler("mvue"), Sampler::kExact);
  EXPECT_EQ(parse_sampler("mvue-two-draw"), Sampler::kTwoDraw);
  const std::string message = message_of([] { parse_sampler("mvu"); });
  EXPECT_TRUE(contains(message, "'mvu'") && contains(message, "mvue and mvue-two-draw"));
}

}  // namespace
}  // namespace weft
