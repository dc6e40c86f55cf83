// The sample of a gradient: the draws against the definition of their random numbers, and the same scales
// whatever the instruction set, the threads, and the way the work is cut.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/weights.h"
#include "weft/core/isa.h"
#include "weft/core/parallel.h"
#include "weft/estimate/mvue.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

using Group = std::vector<float>;

const std::vector<std::string> kPatterns = {"1:2", "2:4",   "1:4",   "3:4",    "4:8",  "2:8",
                                            "5:7", "1:16",  "8:16",  "32:64",  "1:64", "63:64",
                                            "1:1", "64:64", "2:4x2", "1:4x32", "3:5x4"};

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

}  // namespace
}  // namespace weft
