// Judging masks: whether they obey a pattern (verify.h) and what they are worth (retained.h).
#include "weft/mask/verify.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "tests/weights.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"

namespace weft {
namespace {

const std::vector<Pattern> kPatterns = {{1, 1},    {1, 2},    {2, 4},    {3, 5},
                                        {4, 8},    {8, 16},   {1, 64},   {7, 64},
                                        {2, 4, 2}, {1, 4, 4}, {3, 5, 2}, {2, 4, 32}};

Mask draw_mask(const WeightShape& shape, double density, uint64_t stream) {
  Mask mask(shape.outs, shape.cols());
  const Rng rng(test_seed(), stream);
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) {
      mask.set(r, c, rng.uniform(static_cast<uint64_t>(r * mask.cols() + c)) < density);
    }
  }
  return mask;
}

// One axis of a mask: lines that may share a pattern, and positions along which groups lie.
struct Axis {
  bool along_outs;
  const Mask& mask;
  const WeightShape& shape;

  int64_t lines() const { return along_outs ? shape.ins : shape.outs; }
  int64_t length() const { return along_outs ? shape.outs : shape.ins; }
  bool at(int64_t line, int64_t position, int64_t tap) const {
    return along_outs ? mask.at(position, line * shape.taps + tap)
                      : mask.at(line, position * shape.taps + tap);
  }
};

GroupCount naive_count(const Axis& axis, const Pattern& pattern) {
  GroupCount count;
  std::set<std::array<int64_t, 3>> violations;  // out, in, tap
  for (int64_t tap = 0; tap < axis.shape.taps; ++tap) {
    for (int64_t line = 0; line < axis.lines(); ++line) {
      std::vector<int64_t> sharing;  // lines of the same block, equal modulo group
      for (int64_t other = 0; other < axis.lines(); ++other) {
        const bool shares = other / pattern.block() == line / pattern.block() &&
                            other % pattern.group() == line % pattern.group();
        if (pattern.share() == 1 ? other == line : shares) sharing.push_back(other);
      }
      if (sharing.front() != line) continue;
      for (int64_t first = 0; first < axis.length(); first += pattern.group()) {
        const int64_t end = std::min(axis.length(), first + pattern.group());
        std::vector<std::pair<int64_t, int64_t>> kept;  // position, first line that keeps it
        for (int64_t position = first; position < end; ++position) {
          const auto holder = std::find_if(sharing.begin(), sharing.end(), [&](int64_t other) {
            return axis.at(other, position, tap);
          });
          if (holder != sharing.end()) kept.emplace_back(position, *holder);
        }
        ++count.groups;
        count.short_groups += end - first < pattern.group();
        if (kept.size() <= static_cast<size_t>(pattern.keep())) continue;
        ++count.violations;
        const auto [position, holder] = kept[static_cast<size_t>(pattern.keep())];
        violations.insert(axis.along_outs ? std::array{position, holder, tap}
                                          : std::array{holder, position, tap});
      }
    }
  }
  if (!violations.empty()) {
    const auto [out, in, tap] = *violations.begin();
    count.first_violation = WeightPosition{out, in, tap};
  }
  return count;
}

std::string str(const GroupCount& count) {
  std::string first = "none";
  if (const auto& at = count.first_violation) {
    first = fmt::format("[{}, {}, {}]", at->out, at->in, at->tap);
  }
  return fmt::format("{} groups, {} short, {} violations, first {}", count.groups,
                     count.short_groups, count.violations, first);
}

// Shapes around the blocks of a pattern, linear and convolution.
std::vector<WeightShape> shapes_for(const Pattern& pattern) {
  const int64_t group = pattern.group(), block = pattern.block();
  return {{0, 5},
          {5, 0},
          {5, 0, 3},
          {1, 1},
          {1, group + 1},
          {group - 1, 1},
          {group + 1, 2 * group + 1},
          {block, group},
          {block + 1, 3},
          {3, block + 1},
          {group, group, 4},
          {group + 2, group - 1, 3}};
}

TEST(CountGroups, AgreesWithTheNaiveCountAndItsFirstViolation) {
  uint64_t stream = 0;
  for (const Pattern& pattern : kPatterns) {
    for (const WeightShape& shape : shapes_for(pattern)) {
      for (const double density : {0.0, 0.1, 0.4, 0.8, 1.0}) {
        SCOPED_TRACE(trace("density", shape, pattern, fmt::format("{}", density), ++stream));
        const Mask mask = draw_mask(shape, density, stream);
        ASSERT_EQ(str(count_groups_in(mask, shape, pattern)),
                  str(naive_count({false, mask, shape}, pattern)));
        ASSERT_EQ(str(count_groups_out(mask, shape, pattern)),
                  str(naive_count({true, mask, shape}, pattern)));
      }
    }
  }
}

TEST(CountGroups, CountsTheSameInBandsOfBlocks) {
  for (const Pattern& pattern : kPatterns) {
    const WeightShape shape{3 * pattern.block() + 2, pattern.group() + 3, 2};
    SCOPED_TRACE(trace("bands", shape, pattern, "", 900));
    const Mask mask = draw_mask(shape, 0.5, 900);
    GroupCount in, out;
    for (int64_t first = 0; first < shape.outs; first += pattern.block()) {
      const WeightShape band_shape{std::min<int64_t>(pattern.block(), shape.outs - first),
                                   shape.ins, shape.taps};
      Mask band(band_shape.outs, band_shape.cols());
      for (int64_t r = 0; r < band.rows(); ++r) {
        for (int64_t c = 0; c < band.cols(); ++c) band.set(r, c, mask.at(first + r, c));
      }
      GroupCount band_in = count_groups_in(band, band_shape, pattern);
      GroupCount band_out = count_groups_out(band, band_shape, pattern);
      if (band_in.first_violation) band_in.first_violation->out += first;
      if (band_out.first_violation) band_out.first_violation->out += first;
      in += band_in;
      out += band_out;
    }
    EXPECT_EQ(str(in), str(count_groups_in(mask, shape, pattern)));
    EXPECT_EQ(str(out), str(count_groups_out(mask, shape, pattern)));
  }
}

TEST(CountGroups, FindsNothingInTheMasksOfSolversAndOneWeightTooManyWhereItIs) {
  for (const Solver& solver : solvers()) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8), Pattern(2, 4, 2)}) {
      const WeightShape shape{3 * pattern.block(), 2 * pattern.block(), 2};
      SCOPED_TRACE(trace(solver.name, shape, pattern, "gaussian", 910));
      const auto weights = draw_weights<float>(Kind::kGaussian, shape, 910);
      Mask mask = find_mask(solver, weights.data(), shape, pattern);
      EXPECT_EQ(count_groups_in(mask, shape, pattern).violations, 0);
      if (solver.transposable) {
        EXPECT_EQ(count_groups_out(mask, shape, pattern).violations, 0);
      }
      if (!solver.exact) continue;  // need not be full, so may have room for one more

      const int64_t out = pattern.group() + 1, tap = 1;
      for (int64_t in = 2 * pattern.group() - 1; in >= pattern.group(); --in) {
        if (mask.at(out, in * 2 + tap)) continue;
        mask.set(out, in * 2 + tap, true);
        break;
      }
      const GroupCount count = count_groups_in(mask, shape, pattern);
      EXPECT_EQ(count.violations, 1);
      ASSERT_TRUE(count.first_violation);
      EXPECT_EQ(count.first_violation->out % pattern.group(), out % pattern.group());
      EXPECT_EQ(count.first_violation->in / pattern.group(), 1);
      EXPECT_EQ(count.first_violation->tap, tap);
    }
  }
}

TEST(CountGroups, KeepsTheFirstViolationOfASum) {
  GroupCount none{4, 1, 0, {}}, early{2, 0, 1, WeightPosition{1, 2, 3}};
  const GroupCount late{2, 2, 2, WeightPosition{7, 8, 9}};
  none += late;
  none += early;
  EXPECT_EQ(str(none), "8 groups, 3 short, 3 violations, first [1, 2, 3]");
  none += late;
  EXPECT_EQ(str(none), "10 groups, 5 short, 5 violations, first [1, 2, 3]");
  for (const WeightPosition& before : {WeightPosition{1, 2, 2}, {1, 1, 9}, {0, 9, 9}}) {
    none += GroupCount{0, 0, 0, before};
    EXPECT_EQ(none.first_violation, before);
  }
}

TEST(CountGroups, NamesTheViolationThatComesFirstInTheTensor) {
  const Pattern pattern(2, 4);
  const WeightShape conv{8, 4, 2};
  Mask taps(conv.outs, conv.cols());
  for (int64_t in = 0; in < 3; ++in) {
    taps.set(0, in * conv.taps + 1, true);
    taps.set(5, in * conv.taps, true);
  }
  EXPECT_EQ(str(count_groups_in(taps, conv, pattern)),
            "16 groups, 0 short, 2 violations, first [0, 2, 1]");

  const WeightShape linear{8, 8};
  Mask columns(linear.outs, linear.ins);
  for (int64_t i = 0; i < 3; ++i) {
    columns.set(i, 7, true);
    columns.set(4 + i, 0, true);
  }
  EXPECT_EQ(str(count_groups_out(columns, linear, pattern)),
            "16 groups, 0 short, 2 violations, first [2, 7, 0]");

  // Rows 0 and 4 share: the group of inputs 0 - 3 is one too many in row 4, that of 4 - 7 in row 0.
  Mask shared(linear.outs, linear.ins);
  for (int64_t i = 0; i < 3; ++i) {
    shared.set(i < 2 ? 0 : 4, i, true);
    shared.set(0, 4 + i, true);
  }
  EXPECT_EQ(str(count_groups_in(shared, linear, Pattern(2, 4, 2))),
            "8 groups, 0 short, 2 violations, first [0, 6, 0]");
}

TEST(CountGroups, DoesNotDependOnThreads) {
  const ThreadsGuard guard;
  const WeightShape shape{70, 50, 2};
  const Mask mask = draw_mask(shape, 0.5, 920);
  for (const Pattern& pattern : kPatterns) {
    set_threads(1);
    const std::string in = str(count_groups_in(mask, shape, pattern));
    const std::string out = str(count_groups_out(mask, shape, pattern));
    set_threads(3);
    EXPECT_EQ(str(count_groups_in(mask, shape, pattern)), in) << pattern.str();
    EXPECT_EQ(str(count_groups_out(mask, shape, pattern)), out) << pattern.str();
  }
}

TEST(CountGroups, RefusesAMaskOfAnotherShape) {
  const Mask mask(8, 8);
  for (const WeightShape& shape : {WeightShape{8, 7}, WeightShape{7, 8}, WeightShape{8, 8, 2}}) {
    EXPECT_THROW(count_groups_in(mask, shape, Pattern(2, 4)), Error);
    EXPECT_THROW(count_groups_out(mask, shape, Pattern(2, 4)), Error);
    EXPECT_THROW(most_per_group_in(mask, shape), Error);
    EXPECT_THROW(most_per_group_out(mask, shape), Error);
    EXPECT_THROW(retained(std::vector<float>(128).data(), shape, mask), Error);
  }
}

MostPerGroup naive_most(const Axis& axis) {
  MostPerGroup most{};
  for (size_t i = 0; i < kReportedGroups.size(); ++i) {
    for (int64_t tap = 0; tap < axis.shape.taps; ++tap) {
      for (int64_t line = 0; line < axis.lines(); ++line) {
        std::map<int64_t, int> kept;
        for (int64_t position = 0; position < axis.length(); ++position) {
          if (!axis.at(line, position, tap)) continue;
          most[i] = std::max(most[i], ++kept[position / kReportedGroups[i]]);
        }
      }
    }
  }
  return most;
}

TEST(MostPerGroup, AgreesWithTheNaiveCountAlsoInBands) {
  uint64_t stream = 1000;
  for (const WeightShape& shape :
       {WeightShape{0, 9}, WeightShape{9, 0}, WeightShape{1, 1}, WeightShape{63, 65},
        WeightShape{64, 64}, WeightShape{130, 67}, WeightShape{65, 33, 4}}) {
    for (const double density : {0.0, 0.02, 0.3, 1.0}) {
      SCOPED_TRACE(trace("density", shape, Pattern(1, 1), fmt::format("{}", density), ++stream));
      const Mask mask = draw_mask(shape, density, stream);
      const MostPerGroup in = naive_most({false, mask, shape});
      const MostPerGroup out = naive_most({true, mask, shape});
      ASSERT_EQ(most_per_group_in(mask, shape), in);
      ASSERT_EQ(most_per_group_out(mask, shape), out);

      MostPerGroup bands_in{}, bands_out{};
      for (int64_t first = 0; first < shape.outs; first += 64) {
        const WeightShape band_shape{std::min<int64_t>(64, shape.outs - first), shape.ins,
                                     shape.taps};
        Mask band(band_shape.outs, band_shape.cols());
        for (int64_t r = 0; r < band.rows(); ++r) {
          for (int64_t c = 0; c < band.cols(); ++c) band.set(r, c, mask.at(first + r, c));
        }
        const MostPerGroup band_in = most_per_group_in(band, band_shape);
        const MostPerGroup band_out = most_per_group_out(band, band_shape);
        for (size_t i = 0; i < kReportedGroups.size(); ++i) {
          bands_in[i] = std::max(bands_in[i], band_in[i]);
          bands_out[i] = std::max(bands_out[i], band_out[i]);
        }
      }
      ASSERT_EQ(bands_in, in);
      ASSERT_EQ(bands_out, out);
    }
  }
}

template <typename T>
void expect_naive_sums(Kind kind, const WeightShape& shape, uint64_t stream) {
  const auto weights = draw_weights<T>(kind, shape, stream);
  const Mask mask = draw_mask(shape, 0.5, stream);
  SCOPED_TRACE(trace("retained", shape, Pattern(1, 1), name_of(kind), stream));
  Mask everything(shape.outs, shape.cols());
  for (int64_t r = 0; r < shape.outs; ++r) {
    for (int64_t c = 0; c < shape.cols(); ++c) everything.set(r, c, true);
  }
  const double kept = kept_magnitude(weights, mask), total = kept_magnitude(weights, everything);
  set_threads(1);
  const Retained found = retained(weights.data(), shape, mask);
  EXPECT_NEAR(found.kept, kept, sums_exactly(kind) ? 0 : 1e-12 * total);
  EXPECT_NEAR(found.total, total, sums_exactly(kind) ? 0 : 1e-12 * total);
  EXPECT_EQ(found.fraction(), found.total > 0 ? found.kept / found.total : 1.0);
  set_threads(3);
  const Retained threaded = retained(weights.data(), shape, mask);
  EXPECT_EQ(threaded.kept, found.kept);
  EXPECT_EQ(threaded.total, found.total);
}

TEST(Retained, SumsWhatAMaskKeepsAlikeOnAnyNumberOfThreads) {
  const ThreadsGuard guard;
  for (const WeightShape& shape :
       {WeightShape{0, 3}, WeightShape{3, 0}, WeightShape{1, 63}, WeightShape{33, 65},
        WeightShape{40, 129}, WeightShape{9, 7, 9}}) {
    for (const Kind kind : kAllKinds) {
      expect_naive_sums<float>(kind, shape, 1100);
      expect_naive_sums<double>(kind, shape, 1101);
    }
  }
}

TEST(Retained, AddsUp) {
  Retained sum{1, 2};
  sum += Retained{3, 8};
  EXPECT_EQ(sum.kept, 4);
  EXPECT_EQ(sum.total, 10);
  EXPECT_EQ(sum.fraction(), 0.4);
  EXPECT_EQ(Retained{}.fraction(), 1);
}

constexpr double kRounding = 1e-12;

template <typename T>
double kept_by(std::string_view name, const Weights<T>& weights, const Pattern& pattern) {
  return kept_magnitude(weights, find_mask(solver(name), weights.data(), weights.shape, pattern));
}

TEST(TransposableBound, IsNoLessThanTheBestMaskOfTinyTiles) {
  uint64_t stream = 1200;
  for (const auto& [rows, cols] : {std::array{4, 4}, {3, 4}, {4, 2}, {1, 3}, {3, 3}}) {
    for (int keep = 1; keep <= 4; ++keep) {
      for (const Kind kind : kAllKinds) {
        for (int repeat = 0; repeat < 10; ++repeat) {
          const auto weights = draw_weights<double>(kind, {rows, cols}, ++stream);
          const Pattern pattern(keep, 4);
          SCOPED_TRACE(trace("bound", weights.shape, pattern, name_of(kind), stream));
          const double bound = transposable_bound(weights.data(), weights.shape, pattern);
          ASSERT_GE(bound * (1 + kRounding),
                    best_of(legal_masks(rows, cols, keep), weights, 0, rows, cols));
        }
      }
    }
  }
}

TEST(TransposableBound, IsNoLessThanAnySolverAndDoesNotDependOnThreads) {
  const ThreadsGuard guard;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8), Pattern(3, 5), Pattern(8, 16),
                                 Pattern(4, 4), Pattern(2, 4, 2), Pattern(1, 4, 4)}) {
    for (const WeightShape& shape : {WeightShape{37, 61}, WeightShape{21, 11, 3}}) {
      for (const Kind kind : kAllKinds) {
        SCOPED_TRACE(trace("bound", shape, pattern, name_of(kind), 1300));
        const auto weights = draw_weights<float>(kind, shape, 1300);
        set_threads(1);
        const double bound = transposable_bound(weights.data(), shape, pattern);
        for (const Solver& solver : solvers()) {
          if (!solver.transposable) continue;
          ASSERT_GE(bound * (1 + kRounding), kept_by(solver.name, weights, pattern)) << solver.name;
        }
        set_threads(3);
        ASSERT_EQ(transposable_bound(weights.data(), shape, pattern), bound);
      }
    }
  }
}

TEST(TransposableBound, IsWithinOnePercentOnGaussianWeights) {
  const auto weights = draw_weights<float>(Kind::kGaussian, {128, 256}, 1400);
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8), Pattern(2, 8), Pattern(8, 16)}) {
    SCOPED_TRACE(trace("bound", weights.shape, pattern, "gaussian", 1400));
    const double bound = transposable_bound(weights.data(), weights.shape, pattern);
    const double best = kept_by("exact", weights, pattern);
    EXPECT_GE(bound, best);
    EXPECT_LE(bound, 1.01 * best);
  }
}

TEST(TransposableBound, KeepsEverythingWhereThePatternDoes) {
  const auto weights = draw_weights<float>(Kind::kIntegers, {9, 11}, 1410);
  const Pattern all(4, 4);
  EXPECT_EQ(transposable_bound(weights.data(), weights.shape, all),
            kept_by("magnitude", weights, all));
}

// The largest `keep` magnitudes of a whole tile: no structure but the count.
double kept_unstructured(const Weights<float>& weights, int64_t row, int64_t col, size_t keep) {
  std::vector<double> tile;
  for (int64_t r = row; r < row + 8; ++r) {
    for (int64_t c = col; c < col + 8; ++c) tile.push_back(weights.magnitude(r, c));
  }
  std::sort(tile.begin(), tile.end(), std::greater<>());
  double sum = 0;
  for (size_t i = 0; i < keep; ++i) sum += tile[i];
  return sum;
}

// Section 2.4 of methods.md: what structures keep of i.i.d. Gaussian weights in 8 x 8 tiles. Along
// "includes", every mask of the second structure is one of the first.
TEST(RetainedLadder, FallsWithStructureAsMeasuredAndIsOrderedByInclusion) {
  const WeightShape shape{160, 320};
  SCOPED_TRACE(trace("ladder", shape, Pattern(4, 8), "gaussian", 1500));
  const auto weights = draw_weights<float>(Kind::kGaussian, shape, 1500);
  const Mask m48 = find_mask(solver("magnitude"), weights.data(), shape, Pattern(4, 8));
  const Mask m24 = find_mask(solver("magnitude"), weights.data(), shape, Pattern(2, 4));
  const Mask t48 = find_mask(solver("exact"), weights.data(), shape, Pattern(4, 8));
  const Mask t24 = find_mask(solver("exact"), weights.data(), shape, Pattern(2, 4));

  double unstructured = 0;
  for (int64_t row = 0; row < shape.outs; row += 8) {
    for (int64_t col = 0; col < shape.ins; col += 8) {
      const double any = kept_unstructured(weights, row, col, 32);
      const auto kept = [&](const Mask& mask) {
        return kept_magnitude(weights, mask, row, col, 8, 8) * (1 - kRounding);
      };
      ASSERT_GE(any, kept(m48)) << "unstructured includes 4:8";
      ASSERT_GE(kept(m48) * (1 + 2 * kRounding), kept(m24)) << "4:8 includes 2:4";
      ASSERT_GE(kept(m48) * (1 + 2 * kRounding), kept(t48)) << "4:8 includes 4:8-T";
      ASSERT_GE(kept(m24) * (1 + 2 * kRounding), kept(t24)) << "2:4 includes 2:4-T";
      ASSERT_GE(kept(t48) * (1 + 2 * kRounding), kept(t24)) << "4:8-T includes 2:4-T";
      unstructured += any;
    }
  }
  const double total = retained(weights.data(), shape, m48).total;
  EXPECT_NEAR(unstructured / total, 0.795, 0.01);
  EXPECT_NEAR(kept_magnitude(weights, m48) / total, 0.769, 0.01);
  EXPECT_NEAR(kept_magnitude(weights, m24) / total, 0.7455, 0.01);
  EXPECT_NEAR(kept_magnitude(weights, t48) / total, 0.744, 0.01);
  EXPECT_NEAR(kept_by("greedy-keep", weights, Pattern(4, 8)) / total, 0.735, 0.01);
  EXPECT_NEAR(kept_magnitude(weights, t24) / total, 0.706, 0.01);
  EXPECT_NEAR(kept_by("greedy-prune", weights, Pattern(4, 8)) / total, 0.687, 0.01);
}

struct Quality {
  double mean_ratio = 0;  // kept / optimum, per tile
  double worst_ratio = 1;
  double mean_count = 0;     // kept weights per tile
  double optimal_share = 0;  // tiles solved exactly
};

Quality quality_of(std::string_view name, const Weights<float>& weights, const Pattern& pattern) {
  const WeightShape& shape = weights.shape;
  const int64_t group = pattern.group();
  const Mask mask = find_mask(solver(name), weights.data(), shape, pattern);
  const Mask best = find_mask(solver("exact"), weights.data(), shape, pattern);
  const double tiles = static_cast<double>(shape.outs / group * (shape.ins / group));
  Quality quality;
  for (int64_t row = 0; row < shape.outs; row += group) {
    for (int64_t col = 0; col < shape.ins; col += group) {
      const double ratio = kept_magnitude(weights, mask, row, col, group, group) /
                           kept_magnitude(weights, best, row, col, group, group);
      quality.mean_ratio += ratio / tiles;
      quality.worst_ratio = std::min(quality.worst_ratio, ratio);
      quality.optimal_share += ratio >= 1 - kRounding ? 1 / tiles : 0;
    }
  }
  quality.mean_count = static_cast<double>(mask.count()) / tiles;
  return quality;
}

// Section 2.3 of methods.md; its figures are means over i.i.d. Gaussian tiles.
TEST(GreedyQuality, IsAsMeasuredAt24) {
  const auto weights = draw_weights<float>(Kind::kGaussian, {160, 400}, 1600);
  SCOPED_TRACE(trace("quality", weights.shape, Pattern(2, 4), "gaussian", 1600));
  const Quality keep = quality_of("greedy-keep", weights, Pattern(2, 4));
  EXPECT_NEAR(keep.mean_ratio, 0.985, 0.005);
  EXPECT_GE(keep.worst_ratio, 0.5);
  EXPECT_NEAR(keep.mean_count, 7.84, 0.03);
  EXPECT_NEAR(keep.optimal_share, 0.506, 0.05);
  const Quality prune = quality_of("greedy-prune", weights, Pattern(2, 4));
  EXPECT_NEAR(prune.mean_ratio, 0.898, 0.01);
  EXPECT_NEAR(prune.mean_count, 5.95, 0.1);
}

TEST(GreedyQuality, IsAsMeasuredAt48) {
  const auto weights = draw_weights<float>(Kind::kGaussian, {160, 400}, 1610);
  SCOPED_TRACE(trace("quality", weights.shape, Pattern(4, 8), "gaussian", 1610));
  const Quality keep = quality_of("greedy-keep", weights, Pattern(4, 8));
  EXPECT_NEAR(keep.mean_ratio, 0.988, 0.005);
  EXPECT_NEAR(keep.mean_count, 31.43, 0.1);
  const Quality prune = quality_of("greedy-prune", weights, Pattern(4, 8));
  EXPECT_NEAR(prune.mean_ratio, 0.924, 0.01);
  EXPECT_NEAR(prune.mean_count, 25.9, 0.3);
}

TEST(GreedyQuality, IsBelowFlowOnAverage) {
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8), Pattern(8, 16)}) {
    const auto weights = draw_weights<float>(Kind::kGaussian, {64, 64}, 1620);
    SCOPED_TRACE(trace("flow", weights.shape, pattern, "gaussian", 1620));
    const double flow = kept_by("flow", weights, pattern);
    EXPECT_GT(flow, kept_by("greedy-keep", weights, pattern));
    EXPECT_GT(flow, kept_by("greedy-prune", weights, pattern));
  }
}

}  // namespace
}  // namespace weft
