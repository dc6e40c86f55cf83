// The mask solvers: every line of solvers() against its contract, and the table itself. What one solver
// promises beyond that is in a file of its name.
#include "weft/mask/solver.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <utility>

#include "tests/mask/solver_checks.h"
#include "tests/weights.h"
#include "weft/core/isa.h"
#include "weft/mask/retained.h"

namespace weft::test {
namespace {

// Rows (and columns) that a shared pattern ties together: the first of them, counted without gaps.
int64_t naive_class(int64_t index, const Pattern& pattern) {
  const int64_t block = index / (pattern.group() * pattern.share());
  return block * pattern.group() + index % pattern.group();
}

template <typename T>
Weights<double> naive_sums(const Weights<T>& weights, const Pattern& pattern, bool transposable) {
  const WeightShape& shape = weights.shape;
  const auto col_class = [&](int64_t c) { return transposable ? naive_class(c, pattern) : c; };
  int64_t rows = 0, cols = 0;
  for (int64_t r = 0; r < shape.outs; ++r) rows = std::max(rows, naive_class(r, pattern) + 1);
  for (int64_t c = 0; c < shape.ins; ++c) cols = std::max(cols, col_class(c) + 1);
  Weights<double> sums{{rows, cols}, std::vector<double>(static_cast<size_t>(rows * cols))};
  for (int64_t r = 0; r < shape.outs; ++r) {
    for (int64_t c = 0; c < shape.ins; ++c) {
      sums.at(naive_class(r, pattern), col_class(c)) += weights.magnitude(r, c);
    }
  }
  return sums;
}

// The checkers themselves: each must find fault with a wrong answer.
TEST(Checkers, NoticeScoresThatDiffer) {
  expect_same_score(Kind::kIntegers, 7, 7);
  expect_same_score(Kind::kGaussian, 1 + 0x1p-50, 1);
  EXPECT_NONFATAL_FAILURE(expect_same_score(Kind::kIntegers, 7 - 0x1p-50, 7), "");
  EXPECT_NONFATAL_FAILURE(expect_same_score(Kind::kGaussian, 1 - 1e-11, 1), "");
  EXPECT_NONFATAL_FAILURE(expect_same_score(Kind::kGaussian, NAN, 1), "");
}

TEST(Checkers, NoticeGroupsThatAreOverfullOrNotFull) {
  Mask mask(8, 8);  // two of its four tiles are full at 1:4, the others empty
  for (int64_t i = 0; i < 8; ++i) mask.set(i, i, true);
  EXPECT_EQ(overfull_group(mask, {8, 8}, Pattern(1, 4), true), "");
  EXPECT_NE(short_of_full(mask, Pattern(1, 4), true), "");
  EXPECT_NE(short_of_full(mask, Pattern(1, 4), false), "");
  mask.set(5, 6, true);
  EXPECT_NE(overfull_group(mask, {8, 8}, Pattern(1, 4), false), "");
  mask.set(5, 6, false);
  mask.set(5, 3, true);
  mask.set(6, 3, true);
  EXPECT_EQ(overfull_group(mask, {8, 8}, Pattern(1, 4), false), "");
  EXPECT_NE(overfull_group(mask, {8, 8}, Pattern(1, 4), true), "");
  EXPECT_NE(overfull_group(mask, {8, 4, 2}, Pattern(1, 4), false), "") << "inputs 1 and 2 of tap 1";
}

class EverySolver : public ::testing::TestWithParam<size_t> {
 protected:
  const Solver& tested() const { return solvers()[GetParam()]; }
};

INSTANTIATE_TEST_SUITE_P(Table, EverySolver, ::testing::Range(size_t{0}, solvers().size()),
                         [](const auto& info) {
                           std::string name(solvers()[info.param].name);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EverySolver, MasksAreLegalAndExactOnesAreFullAtEveryEdge) {
  uint64_t stream = 100;
  for (const Pattern& pattern : kPatterns) {
    const bool large = tested().transposable && pattern.group() == 64;
    const std::vector<int64_t> sizes =
        large ? std::vector<int64_t>{63, 65} : edges(pattern.group());
    for (const int64_t outs : sizes) {
      for (const int64_t ins : sizes) {
        for (const Kind kind : {Kind::kGaussian, Kind::kIntegers}) {
          const auto weights = draw_weights<float>(kind, {outs, ins}, ++stream);
          SCOPED_TRACE(trace(tested().name, weights.shape, pattern, name_of(kind), stream));
          const Mask mask = mask_of(tested(), weights, pattern);
          ASSERT_EQ(mask.rows(), outs);
          ASSERT_EQ(mask.cols(), ins);
          ASSERT_EQ(overfull_group(mask, weights.shape, pattern, tested().transposable), "");
          if (!tested().exact) continue;
          ASSERT_EQ(short_of_full(mask, pattern, tested().transposable), "");
        }
      }
    }
  }
}

TEST_P(EverySolver, TakesEveryKindOfWeightInFloatAndDouble) {
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(3, 5), Pattern(4, 8)}) {
    const WeightShape shape{2 * pattern.group() + 1, 4 * pattern.group() + 3};
    for (const Kind kind : kAllKinds) {
      SCOPED_TRACE(trace(tested().name, shape, pattern, name_of(kind), 200));
      const auto narrow = draw_weights<float>(kind, shape, 200);
      const auto wide = draw_weights<double>(kind, shape, 200);
      for (const Mask& mask :
           {mask_of(tested(), narrow, pattern), mask_of(tested(), wide, pattern)}) {
        ASSERT_EQ(overfull_group(mask, shape, pattern, tested().transposable), "");
        if (!tested().exact) continue;
        ASSERT_EQ(short_of_full(mask, pattern, tested().transposable), "");
      }
    }
  }
}

TEST_P(EverySolver, SeesTheSameWeightsInFloatAndDouble) {
  const WeightShape shape{17, 43};
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8), Pattern(2, 4, 2)}) {
    for (const Kind kind : {Kind::kGaussian, Kind::kIntegers}) {
      SCOPED_TRACE(trace(tested().name, shape, pattern, name_of(kind), 250));
      const auto narrow = draw_weights<float>(kind, shape, 250);
      const Weights<double> wide{shape, {narrow.values.begin(), narrow.values.end()}};
      EXPECT_EQ(mask_of(tested(), narrow, pattern), mask_of(tested(), wide, pattern));
    }
  }
}

TEST_P(EverySolver, IgnoresSigns) {
  auto weights = draw_weights<float>(Kind::kIntegers, {13, 30}, 260);
  const Mask before = mask_of(tested(), weights, Pattern(2, 4));
  for (float& weight : weights.values) weight = -weight;
  EXPECT_EQ(mask_of(tested(), weights, Pattern(2, 4)), before);
}

TEST_P(EverySolver, TransposedMaskServesTheTransposedWeights) {
  if (!tested().transposable) return;  // promises inputs only
  for (const Pattern& pattern : {Pattern(1, 4), Pattern(2, 4), Pattern(3, 4), Pattern(4, 8),
                                 Pattern(3, 5), Pattern(8, 16), Pattern(2, 4, 2)}) {
    for (const Kind kind : {Kind::kGaussian, Kind::kIntegers, Kind::kWide}) {
      const WeightShape shape{2 * pattern.block() + 1, 3 * pattern.block() - 1};
      const auto weights = draw_weights<float>(kind, shape, 300);
      SCOPED_TRACE(trace(tested().name, shape, pattern, name_of(kind), 300));
      const auto turned = transposed(weights);
      const Mask mask = mask_of(tested(), weights, pattern);
      const Mask turned_mask = mask_of(tested(), turned, pattern);
      EXPECT_EQ(overfull_group(mask.transposed(), turned.shape, pattern, true), "");
      if (tested().exact) {
        expect_same_score(kind, kept_magnitude(turned, turned_mask), kept_magnitude(weights, mask));
      } else if (kind != Kind::kIntegers && pattern.share() == 1) {
        EXPECT_EQ(turned_mask, mask.transposed());  // greedy without ties
      }
    }
  }
}

void expect_mask_of_sums(const Solver& tested, const Weights<float>& weights,
                         const Pattern& pattern, Kind kind) {
  const Pattern alone(pattern.keep(), pattern.group());
  const Mask mask = mask_of(tested, weights, pattern);
  const auto sums = naive_sums(weights, pattern, tested.transposable);
  const Mask of_sums = mask_of(tested, sums, alone);
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) {
      const int64_t sum_col = tested.transposable ? naive_class(c, pattern) : c;
      ASSERT_EQ(mask.at(r, c), of_sums.at(naive_class(r, pattern), sum_col))
          << "at [" << r << ", " << c << "]";
    }
  }
  ASSERT_EQ(overfull_group(mask, weights.shape, pattern, tested.transposable), "");
  if (!tested.exact) return;
  const Solver& oracle = solver(tested.transposable ? "flow" : "magnitude");
  expect_same_score(kind, kept_magnitude(weights, mask),
                    kept_magnitude(sums, mask_of(oracle, sums, alone)));
}

TEST_P(EverySolver, SharesRowsAndSolvesTheirSums) {
  for (const Pattern& pattern : {Pattern(2, 4, 2), Pattern(1, 4, 4), Pattern(3, 5, 2),
                                 Pattern(2, 4, 32), Pattern(2, 3, 32), Pattern(3, 8, 4)}) {
    const int64_t block = pattern.block(), group = pattern.group();
    for (const int64_t outs :
         {int64_t{1}, group - 1, group + 1, block - 1, block, block + group + 1}) {
      for (const int64_t ins :
           {int64_t{0}, group + 1, block - 1, 2 * block + group + 2, 3 * block + 130}) {
        if (ins > 256 && outs > block) continue;  // flow would take its time
        for (const Kind kind : {Kind::kIntegers, Kind::kGaussian}) {
          const auto weights = draw_weights<float>(kind, {outs, ins}, 400);
          SCOPED_TRACE(trace(tested().name, weights.shape, pattern, name_of(kind), 400));
          expect_mask_of_sums(tested(), weights, pattern, kind);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST_P(EverySolver, SolvesEveryTapOfAConvolutionAlone) {
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8), Pattern(2, 4, 2), Pattern(1, 1)}) {
    for (const int64_t taps : {2, 9, 17, 25, 64, 65}) {  // so that 4, 3, 2, 1, no inputs fit a word
      if (taps > 9 && pattern.group() > 4) continue;
      for (const int64_t ins : {int64_t{0}, int64_t{3}, int64_t{pattern.group()}, int64_t{19}}) {
        const WeightShape shape{2 * pattern.group() + 1, ins, taps};
        const auto weights = draw_weights<float>(Kind::kIntegers, shape, 500);
        SCOPED_TRACE(trace(tested().name, shape, pattern, "integers", 500));
        const Mask mask = mask_of(tested(), weights, pattern);
        ASSERT_EQ(overfull_group(mask, shape, pattern, tested().transposable), "");
        for (int64_t tap = 0; tap < taps; ++tap) {
          Weights<float> alone{{shape.outs, ins}, std::vector<float>(size_t(shape.outs * ins))};
          Mask of_tap(shape.outs, ins);
          for (int64_t out = 0; out < shape.outs; ++out) {
            for (int64_t in = 0; in < ins; ++in) {
              alone.at(out, in) = weights.values[size_t((out * ins + in) * taps + tap)];
              of_tap.set(out, in, mask.at(out, in * taps + tap));
            }
          }
          ASSERT_EQ(of_tap, mask_of(tested(), alone, pattern)) << "tap " << tap;
        }
      }
    }
  }
}

TEST_P(EverySolver, DefinesEmptyMatricesOneRowAndOneColumn) {
  const std::vector<float> ones(8, 1.0F);
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(2, 4, 2)}) {
    EXPECT_EQ(find_mask<float>(tested(), nullptr, {0, 7}, pattern), Mask(0, 7));
    EXPECT_EQ(find_mask<float>(tested(), nullptr, {7, 0}, pattern), Mask(7, 0));
    EXPECT_EQ(find_mask<float>(tested(), nullptr, {7, 3, 0}, pattern), Mask(7, 0));
    EXPECT_EQ(find_mask<float>(tested(), nullptr, {0, 0}, pattern), Mask(0, 0));
  }
  // One row keeps 2 of every 4. One column has groups of one along inputs, so it keeps all; if it
  // must be N:M along outputs too, 2 of every 4 again.
  const Mask row = find_mask(tested(), ones.data(), {1, 8}, Pattern(2, 4));
  const Mask col = find_mask(tested(), ones.data(), {8, 1}, Pattern(2, 4));
  EXPECT_EQ(row.count(), 4);
  EXPECT_EQ(col.count(), tested().transposable ? 4 : 8);
}

// The message of the error that find_mask throws, or "".
template <typename T>
std::string refusal(const Solver& solver, const Weights<T>& weights, const Pattern& pattern) {
  try {
    mask_of(solver, weights, pattern);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_P(EverySolver, RefusesWeightsThatAreNotFiniteAndNamesTheFirst) {
  const ThreadsGuard guard;
  for (const Pattern& pattern :
       {Pattern(2, 4), Pattern(4, 8), Pattern(2, 4, 2), Pattern(1, 4, 4)}) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity()}) {
      for (const WeightShape& shape : {WeightShape{21, 37}, WeightShape{21, 5, 9}}) {
        SCOPED_TRACE(trace(tested().name, shape, pattern, fmt::format("{}", bad), 600));
        auto weights = draw_weights<float>(Kind::kGaussian, shape, 600);
        ASSERT_EQ(refusal(tested(), weights, pattern), "");
        weights.at(20, 0) = bad;
        weights.at(10, 36) = bad;
        weights.at(10, 33) = bad;
        for (const int count : {1, 3}) {
          set_threads(count);
          const std::string message = refusal(tested(), weights, pattern);
          ASSERT_NE(message.find("[10, 33]"), std::string::npos) << message;
          ASSERT_NE(message.find(fmt::format("{}", bad)), std::string::npos) << message;
        }
      }
    }
  }
}

TEST_P(EverySolver, RefusesDoublesWhoseSumsCouldOverflow) {
  auto weights = draw_weights<double>(Kind::kGaussian, {9, 9}, 610);
  weights.at(8, 1) = -0x1p900;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(3, 5), Pattern(2, 4, 32)}) {
    EXPECT_EQ(refusal(tested(), weights, pattern), "");
    EXPECT_TRUE(mask_of(tested(), weights, pattern).at(8, 1));
  }
  weights.at(4, 3) = std::nextafter(0x1p900, 0x1p901);
  const std::string message = refusal(tested(), weights, Pattern(2, 4));
  EXPECT_NE(message.find("[4, 3]"), std::string::npos) << message;
}

TEST_P(EverySolver, RefusesNegativeSizes) {
  const float none = 0;
  EXPECT_THROW(find_mask(tested(), &none, {-1, 4}, Pattern(2, 4)), Error);
  EXPECT_THROW(find_mask(tested(), &none, {4, -1}, Pattern(2, 4)), Error);
  EXPECT_THROW(find_mask(tested(), &none, {4, 4, -1}, Pattern(2, 4)), Error);
}

TEST_P(EverySolver, FindsTheSameMaskOnAnyNumberOfThreads) {
  const ThreadsGuard guard;
  // Bands whose tiles have several shapes, so that what a thread did before could matter.
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8), Pattern(3, 5), Pattern(2, 4, 2)}) {
    for (const Kind kind : {Kind::kGaussian, Kind::kIntegers, Kind::kEqual}) {
      const WeightShape shape{9 * pattern.group() + 3, 6 * pattern.group() + 1};
      SCOPED_TRACE(trace(tested().name, shape, pattern, name_of(kind), 700));
      const auto weights = draw_weights<float>(kind, shape, 700);
      set_threads(1);
      const Mask alone = mask_of(tested(), weights, pattern);
      for (const int count : {2, 3}) {
        set_threads(count);
        ASSERT_EQ(mask_of(tested(), weights, pattern), alone) << count << " threads";
      }
    }
  }
}

template <typename T>
void expect_same_on_every_isa(const Solver& solver, const Pattern& pattern) {
  // Widths around those of vectors, which hold between 2 doubles and 16 floats.
  const int64_t group = pattern.group();
  for (const int64_t ins : {group - 1, group, 3 * group, 7 * group + 1, 17 * group + group / 2}) {
    for (const Kind kind : kAllKinds) {
      const WeightShape shape{2 * group + 1, ins};
      const auto weights = draw_weights<T>(kind, shape, 800);
      SCOPED_TRACE(trace(solver.name, shape, pattern, name_of(kind), 800));
      restore_isa();
      const Mask best = mask_of(solver, weights, pattern);
      for (const std::string& isa : available_isas()) {
        force_isa(isa);
        ASSERT_EQ(current_isa(), isa);
        ASSERT_EQ(mask_of(solver, weights, pattern), best) << isa << ", float of " << sizeof(T);
      }
    }
  }
}

TEST_P(EverySolver, FindsTheSameMaskOnEveryInstructionSet) {
  struct IsaGuard {
    ~IsaGuard() { restore_isa(); }
  } guard;
  for (const Pattern& pattern : {Pattern(1, 1), Pattern(1, 4), Pattern(2, 4), Pattern(3, 4),
                                 Pattern(3, 5), Pattern(4, 8), Pattern(8, 16), Pattern(2, 4, 2)}) {
    expect_same_on_every_isa<float>(tested(), pattern);
    if (HasFatalFailure()) return;
    expect_same_on_every_isa<double>(tested(), pattern);
    if (HasFatalFailure()) return;
  }
}

TEST(UnusableWeight, IsTheFirstInAViewAndNoneInUsableOnes) {
  std::vector<float> values(12, std::numeric_limits<float>::max());
  const MatrixView<const float> view(values.data(), 3, 3, 4);  // column 3 is not in view
  values[3] = NAN;
  EXPECT_FALSE(unusable_weight(view));
  values[6] = -INFINITY;
  values[9] = NAN;
  const auto found = unusable_weight(view);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->row, 1);
  EXPECT_EQ(found->col, 2);
  EXPECT_EQ(found->value, -INFINITY);
}

template <typename T>
void expect_position(const Solver& solver, T bad, std::string_view message) {
  const WeightShape shape{21, 5, 9};
  auto weights = draw_weights<T>(Kind::kGaussian, shape, 620);
  weights.at(10, 33) = bad;
  weights.at(20, 0) = bad;
  const auto expect_error = [&](const auto& use) {
    try {
      use();
      FAIL() << "accepted";
    } catch (const UnusableWeightError& error) {
      EXPECT_EQ(error.weight().row, 10);
      EXPECT_EQ(error.weight().col, 33);
      EXPECT_EQ(error.weight().value, static_cast<double>(bad));
      EXPECT_EQ(error.what(), message);
    }
  };
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8), Pattern(2, 4, 2)}) {
    expect_error([&] { mask_of(solver, weights, pattern); });
    expect_error([&] { transposable_bound(weights.data(), shape, pattern); });
  }
}

TEST_P(EverySolver, CarriesTheUnusableWeightInItsError) {
  expect_position<float>(tested(), -std::numeric_limits<float>::infinity(),
                         "weight [10, 33] is -inf: masks need finite weights");
  expect_position<double>(tested(), std::numeric_limits<double>::infinity(),
                          "weight [10, 33] is inf: masks need finite weights of at most 2^900");
  expect_position<double>(tested(), -0x1p901,
                          fmt::format("weight [10, 33] is {}: masks need finite weights of at most "
                                      "2^900",
                                      -0x1p901));
}

TEST(SolverTable, FindsEverySolverByItsName) {
  std::set<std::string_view> names;
  for (const Solver& line : solvers()) {
    EXPECT_TRUE(names.insert(line.name).second) << line.name << " twice";
    EXPECT_EQ(&solver(line.name), &line);
    // What people read is what the code asks.
    EXPECT_EQ(line.exact, line.guarantee.starts_with("optimal")) << line.name;
    EXPECT_EQ(line.transposable, line.source.find("Hubara 2021") != line.source.npos) << line.name;
  }
  EXPECT_TRUE(default_solver(true).transposable);
  EXPECT_FALSE(default_solver(false).transposable);
  EXPECT_TRUE(default_solver(true).exact && default_solver(false).exact);
}

TEST(SolverTable, NamesTheKnownSolversWhenAskedForAnother) {
  try {
    solver("simplex");
    FAIL() << "found";
  } catch (const Error& error) {
    for (const Solver& line : solvers()) {
      EXPECT_NE(std::string_view(error.what()).find(line.name), std::string_view::npos);
    }
  }
}

// Weights are looked at on the way through several loops; none may miss one.
TEST(UnusableWeight, IsNamedWhereverItIs) {
  const WeightShape shape{7, 64 * 18 + 39};
  for (const std::string_view name : {"exact", "magnitude"}) {
    for (const Kind kind : {Kind::kGaussian, Kind::kZeros}) {
      auto weights = draw_weights<float>(kind, shape, 1260);
      for (int64_t i = 0; i < shape.outs * shape.ins; i += 13) {
        SCOPED_TRACE(trace(name, shape, Pattern(2, 4), name_of(kind), 1260));
        float& weight = weights.values[static_cast<size_t>(i)];
        const float before = std::exchange(weight, i % 2 == 0 ? INFINITY : -NAN);
        const std::string position = fmt::format("weight [{}, {}] ", i / shape.ins, i % shape.ins);
        ASSERT_EQ(refusal(solver(name), weights, Pattern(2, 4)).substr(0, position.size()),
                  position);
        weight = before;
      }
    }
  }
}

TEST_P(EverySolver, IfExactIsTheBestOfAllMasksOfTinyTiles) {
  if (!tested().exact || !tested().transposable) return;  // promises something else
  uint64_t stream = 1300;
  for (int rows = 1; rows <= 4; ++rows) {
    for (int cols = 1; cols <= 4; ++cols) {
      for (int keep = 1; keep <= 4; ++keep) {
        const std::vector<TileCode> masks = full_masks(rows, cols, keep);
        ASSERT_EQ(std::popcount(masks.front()),
                  std::min(rows * std::min(keep, cols), cols * std::min(keep, rows)));
        for (const Kind kind : kAllKinds) {
          for (int repeat = 0; repeat < 20; ++repeat) {
            const auto weights = draw_weights<double>(kind, {rows, cols}, ++stream);
            // At group 5 no tile is whole, at group 4 the 4 x 4 ones are.
            for (const int group : {4, 5}) {
              const Pattern pattern(keep, group);
              SCOPED_TRACE(trace(tested().name, weights.shape, pattern, name_of(kind), stream));
              const Mask mask = mask_of(tested(), weights, pattern);
              expect_same_score(kind, kept_magnitude(weights, mask),
                                best_of(masks, weights, 0, rows, cols));
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

// The released code of Hubara et al. once made illegal masks of these (its issue 1).
TEST_P(EverySolver, MakesLegalMasksOfCountingTiles) {
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(4, 8)}) {
    const WeightShape shape{pattern.group(), pattern.group()};
    Weights<float> weights{shape, std::vector<float>(size_t(shape.outs * shape.ins))};
    std::iota(weights.values.begin(), weights.values.end(), 1.0F);
    const Mask mask = mask_of(tested(), weights, pattern);
    EXPECT_EQ(overfull_group(mask, shape, pattern, tested().transposable), "") << pattern.str();
    if (!tested().exact) continue;
    EXPECT_EQ(short_of_full(mask, pattern, tested().transposable), "") << pattern.str();
  }
}

}  // namespace
}  // namespace weft::test
