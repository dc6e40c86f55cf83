// The exact solver on tiles of every size, against flow.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/mask/solver_checks.h"
#include "tests/weights.h"
#include "weft/mask/solver.h"

namespace weft::test {
namespace {

// Tile by tile, so that a heavy tile does not hide the loss of a light one.
template <typename T>
void expect_exact_keeps_as_much_as_flow(Kind kind, const WeightShape& shape, const Pattern& pattern,
                                        uint64_t stream) {
  const auto weights = draw_weights<T>(kind, shape, stream);
  SCOPED_TRACE(trace("exact", shape, pattern, name_of(kind), stream));
  const Mask exact = mask_of(solver("exact"), weights, pattern);
  const Mask flow = mask_of(solver("flow"), weights, pattern);
  const int64_t group = pattern.group();
  for (int64_t row = 0; row < shape.outs; row += group) {
    for (int64_t col = 0; col < shape.ins; col += group) {
      SCOPED_TRACE(fmt::format("tile at [{}, {}]", row, col));
      const int64_t rows = std::min(group, shape.outs - row),
                    cols = std::min(group, shape.ins - col);
      expect_same_score(kind, kept_magnitude(weights, exact, row, col, rows, cols),
                        kept_magnitude(weights, flow, row, col, rows, cols));
    }
  }
}

TEST(Exact, KeepsAsMuchAsFlow) {
  for (const Pattern& pattern : {Pattern(4, 8), Pattern(2, 8), Pattern(6, 8), Pattern(8, 16),
                                 Pattern(3, 5), Pattern(7, 9), Pattern(1, 9), Pattern(16, 32)}) {
    const WeightShape shape{2 * pattern.group() + 1, 3 * pattern.group() - 1};
    for (const Kind kind : kAllKinds) {
      const uint64_t repeats = pattern.group() > 16 ? 2 : 10;
      for (uint64_t stream = 1400; stream < 1400 + repeats; ++stream) {
        expect_exact_keeps_as_much_as_flow<double>(kind, shape, pattern, stream);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(Exact, KeepsAsMuchAsFlowInTheLargestTiles) {
  for (const Pattern& pattern : {Pattern(32, 64), Pattern(1, 64), Pattern(5, 63)}) {
    for (const Kind kind : {Kind::kGaussian, Kind::kIntegers, Kind::kWide}) {
      const WeightShape shape{pattern.group(), pattern.group()};
      expect_exact_keeps_as_much_as_flow<float>(kind, shape, pattern, 1500);
    }
  }
}

TEST(Exact, KeepsAsMuchAsFlowInShortTilesOfEveryShape) {
  uint64_t stream = 1600;
  for (int rows = 1; rows <= 9; ++rows) {
    for (int cols = 1; cols <= 9; ++cols) {
      for (const int keep : {1, 2, 3, 5, 8}) {
        for (const Kind kind : {Kind::kGaussian, Kind::kIntegers, Kind::kWide, Kind::kNearTies}) {
          const WeightShape shape{rows, cols};
          expect_exact_keeps_as_much_as_flow<double>(kind, shape, Pattern(keep, 10), ++stream);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Nearly every choice is between equals here, and sums are exact, so scores must be equal.
TEST(Exact, KeepsExactlyAsMuchAsFlowWhereWeightsTie) {
  for (const Pattern& pattern : {Pattern(8, 16), Pattern(16, 32)}) {
    const int64_t group = pattern.group();
    for (const WeightShape& shape :
         {WeightShape{2 * group, 2 * group}, WeightShape{group, group - 3},
          WeightShape{group - 5, group}}) {
      for (const Kind kind : {Kind::kZeros, Kind::kEqual, Kind::kIntegers}) {
        expect_exact_keeps_as_much_as_flow<float>(kind, shape, pattern, 1550);
      }
      SCOPED_TRACE(trace("exact", shape, pattern, "mostly zeros", 1551));
      auto sparse = draw_weights<float>(Kind::kIntegers, shape, 1551);
      for (size_t i = 0; i < sparse.values.size(); ++i) {
        if (i * 7 % 10 != 0) sparse.values[i] = 0;
      }
      EXPECT_EQ(kept_magnitude(sparse, mask_of(solver("exact"), sparse, pattern)),
                kept_magnitude(sparse, mask_of(solver("flow"), sparse, pattern)));
    }
  }
}

// Equal columns are taken in turn: the mask of a tile of equal weights is full without a search.
TEST(Exact, TakesTurnsAmongEqualColumns) {
  const Weights<float> equal{{5, 5}, std::vector<float>(25, 1)};
  EXPECT_EQ(mask_of(solver("exact"), equal, Pattern(2, 5)),
            mask_from({"11000", "00110", "10001", "01100", "00011"}));
}

// Whole tiles of other sizes than 4 x 4 begin from guessed prices, short ones from none; weights
// that grow along both axes make every row want the same columns, the longest way from a full mask.
TEST(Exact, ResolvesTilesInWhichAllRowsWantTheSameColumns) {
  for (const Pattern& pattern : {Pattern(4, 8), Pattern(3, 7), Pattern(8, 16)}) {
    const int64_t group = pattern.group();
    for (const WeightShape& shape : {WeightShape{group, group}, WeightShape{group, group - 2},
                                     WeightShape{group - 3, group}}) {
      SCOPED_TRACE(trace("exact", shape, pattern, "products", 0));
      Weights<double> weights{shape, std::vector<double>(size_t(shape.outs * shape.ins))};
      for (int64_t r = 0; r < shape.outs; ++r) {
        for (int64_t c = 0; c < shape.ins; ++c) {
          weights.at(r, c) = static_cast<double>((r + 1) * (c + 1));
        }
      }
      EXPECT_EQ(kept_magnitude(weights, mask_of(solver("exact"), weights, pattern)),
                kept_magnitude(weights, mask_of(solver("flow"), weights, pattern)));
    }
  }
}

}  // namespace
}  // namespace weft::test
