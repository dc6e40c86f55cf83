// The products of a linear layer against naive ones in double: every pattern, shapes from the tile,
// both value types, every instruction set, any number of threads; NaN and infinity; wrong calls.
#include <gtest/gtest.h>

#include "tests/linear_problem.h"
#include "weft/core/transpose.h"
#include "weft/kernel/panel/linear_operands.h"
#include "weft/kernel/panel/panel_product.h"

namespace weft::test {
namespace {

// Depths from one row up; widths of one vector of AVX-512, of odd numbers of them, and of more than
// any instruction set keeps in registers.
const std::vector<PackTile> kTiles = {{4, 16},  {16, 32},  {9, 48}, {24, 64},
                                      {5, 128}, {16, 192}, {1, 16}};

// ---- right

class LinearProducts : public ::testing::TestWithParam<ProductForm> {};

INSTANTIATE_TEST_SUITE_P(All, LinearProducts, ::testing::ValuesIn(kPackedForms),
                         [](const auto& info) { return info.param.name(); });

// Each size of each axis once, in combinations that `turn` selects: over many turns, all.
std::vector<std::array<int64_t, 3>> covering(const std::vector<int64_t>& rows,
                                             const std::vector<int64_t>& depths,
                                             const std::vector<int64_t>& cols, size_t turn) {
  std::vector<std::array<int64_t, 3>> shapes;
  const size_t count = std::max({rows.size(), depths.size(), cols.size()});
  for (size_t i = 0; i < count; ++i) {
    shapes.push_back({rows[i % rows.size()], depths[(i + turn) % depths.size()],
                      cols[(cols.size() * count - i + turn / count) % cols.size()]});
  }
  return shapes;
}

TEST_P(LinearProducts, AreRightAroundTheTile) {
  uint64_t stream = 0;
  for (const Pattern& pattern : kProductPatterns) {
    std::vector<PackTile> tiles = kTiles;
    tiles.push_back(tile_for(pattern));
    for (const PackTile& tile : tiles) {
      const int64_t unit = pattern.share() == 1 ? 8 : pattern.block();
      for (const auto& [rows, depth, cols] :
           covering(edges(unit), edges(tile.depth), edges(tile.width), stream / 6)) {
        Dice dice(++stream);
        Linear l;
        l.form = GetParam();
        l.pattern = pattern;
        l.tile = tile;
        l.rows = rows;
        l.depth = depth;
        l.cols = cols;
        l.value_type = dice.coin() ? Precision::kFp32 : Precision::kBf16;
        l.data = dice.coin() ? Data::kIntegers : Data::kFloats;
        l.fill = dice.coin() ? Fill::kFull : Fill::kPartly;
        l.bias = l.form.product == Product::kForward && dice.coin();
        l.beta = dice.coin() ? 1.0f : 0.0f;
        l.gap = dice.coin() ? 0 : 1 + dice.below(5);
        l.stream = stream;
        expect_right(LinearProblem(l));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Every pattern and value type with whole tiles and a remainder on each axis.
TEST_P(LinearProducts, AreRightForEveryPatternAndPrecision) {
  uint64_t stream = 10000;
  for (const Pattern& pattern : kProductPatterns) {
    for (const Precision type : {Precision::kFp32, Precision::kBf16}) {
      for (const Fill fill : {Fill::kFull, Fill::kPartly}) {
        for (const Data data : {Data::kIntegers, Data::kFloats}) {
          Linear l = forward(pattern, {24, 32}, 37, 2 * std::max(64, pattern.group()) + 3,
                             pattern.block() + 5);
          l.form = GetParam();
          l.value_type = type;
          l.data = data;
          l.fill = fill;
          l.gap = static_cast<int64_t>(stream % 3);
          l.bias = l.form.product == Product::kForward && stream % 2 == 0;
          l.beta = stream / 2 % 2 == 0 ? 1.0f : 0.0f;
          l.stream = ++stream;
          expect_right(LinearProblem(l));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// More rows than a tile of C has, whatever the width.
TEST_P(LinearProducts, AreRightForManyRows) {
  uint64_t stream = 20000;
  for (const Pattern& pattern : {Pattern(1, 16), Pattern(2, 4, 2), Pattern(1, 2, 32)}) {
    for (const PackTile& tile : {PackTile{16, 16}, PackTile{8, 192}}) {
      Linear l = forward(pattern, tile, 19, 21, 64 * 1024 / (4 * tile.width) * 2 + 3);
      l.form = GetParam();
      l.beta = 1;
      l.stream = ++stream;
      expect_right(LinearProblem(l));
      if (HasFatalFailure()) return;
    }
  }
}

// Too deep to be copied at once, see Loops.CopyADeepOperandInParts; C in one tile and in several.
TEST_P(LinearProducts, AreRightForALargeDepth) {
  uint64_t stream = 30000;
  struct Deep {
    Pattern pattern;
    PackTile tile;
    int64_t rows, depth, cols;
  };
  for (const Deep& deep :
       {Deep{{1, 16}, {16, 192}, 175, 8192 + 17, 7}, Deep{{2, 4}, {7, 16}, 9, 8192, 17},
        Deep{{2, 4, 2}, {100, 32}, 19, 4096 + 1, 33}, Deep{{1, 4, 4}, {1000, 16}, 35, 4096 + 1, 5},
        Deep{{3, 64}, {33, 48}, 30, 3 * 4096, 20}}) {
    Linear l = forward(deep.pattern, deep.tile, deep.cols, deep.depth, deep.rows);
    l.form = GetParam();
    l.value_type = stream % 2 == 0 ? Precision::kFp32 : Precision::kBf16;
    l.data = stream % 2 == 0 ? Data::kFloats : Data::kIntegers;
    l.beta = stream % 3 == 0 ? 1.0f : 0.0f;
    l.bias = l.form.product == Product::kForward;
    l.stream = ++stream;
    expect_right(LinearProblem(l));
    if (HasFatalFailure()) return;
  }
}

// A pack need not obey a pattern at all: a tenth of all weights, rows without any.
TEST_P(LinearProducts, AreRightForUnstructuredMasks) {
  if (GetParam().product != Product::kForward && !GetParam().ragged) GTEST_SKIP();
  for (uint64_t stream = 40000; stream < 40020; ++stream) {
    Dice dice(stream);
    Linear l = forward({64, 64}, {16, 32}, 40, 70, 30);
    l.form = GetParam();
    l.data = Data::kFloats;
    l.stream = stream;
    LinearProblem problem(l);
    for (int64_t r = 0; r < problem.sparse().mask.rows(); ++r) {
      for (int64_t c = 0; c < problem.sparse().mask.cols(); ++c) {
        if (r % 7 == 3 || c % 11 == 5 || dice.below(10) > 0) {
          problem.sparse().mask.set(r, c, false);
          problem.sparse().weights.at(r, c) = NAN;
        }
      }
    }
    problem.repack(l.tile);
    expect_right(problem);
    if (HasFatalFailure()) return;
  }
}

// ---- the same bits

TEST_P(LinearProducts, DoNotDependOnTheTile) {
  uint64_t stream = 50000;
  for (const Pattern& pattern : kProductPatterns) {
    Linear l = forward(pattern, kTiles.front(), 70, 67, pattern.block() + 9);
    l.form = GetParam();
    l.data = Data::kFloats;
    l.stream = ++stream;
    LinearProblem problem(l);
    for_each_isa([&](const std::string& isa) {
      problem.repack(kTiles.front());
      const std::vector<uint32_t> want = problem.result();
      for (const PackTile& tile : kTiles) {
        problem.repack(tile);
        ASSERT_EQ(difference(problem.result(), want, problem.output_cols()), "")
            << l.str() << ", " << isa << ", now in tiles of " << tile.depth << " x " << tile.width;
      }
    });
    if (HasFatalFailure()) return;
  }
}

TEST_P(LinearProducts, DoNotDependOnThreads) {
  const ThreadsGuard guard;
  const std::string best = available_isas().front();
  uint64_t stream = 60000;
  struct Size {
    PackTile tile;
    int64_t rows, depth, cols;
  };
  // One stripe, which the threads share; a few; many; too deep to be copied at once.
  for (const Size& size : {Size{{16, 64}, 90, 30, 20}, Size{{8, 32}, 70, 50, 90},
                           Size{{24, 16}, 20, 40, 250}, Size{{16, 64}, 70, 4100, 3}}) {
    for (const Pattern& pattern :
         {Pattern(2, 4), Pattern(1, 16), Pattern(2, 4, 2), Pattern(1, 4, 4), Pattern(1, 2, 32)}) {
      Linear l = forward(pattern, size.tile, size.cols, size.depth, size.rows);
      l.form = GetParam();
      l.data = Data::kFloats;
      l.bias = l.form.product == Product::kForward;
      l.beta = 1;
      l.stream = ++stream;
      const LinearProblem problem(l);
      for_each_isa([&](const std::string& isa) {
        set_threads(1);
        const std::vector<uint32_t> want = problem.result();
        const std::vector<int> counts =
            isa == best ? std::vector<int>{2, 3, 5} : std::vector<int>{3};
        for (const int count : counts) {
          set_threads(count);
          ASSERT_EQ(difference(problem.result(), want, problem.output_cols()), "")
              << l.str() << ", " << isa << ", " << count << " threads";
        }
      });
      if (HasFatalFailure()) return;
    }
  }
}

// Equal tokens have equal outputs, wherever in the batch they stand.
TEST_P(LinearProducts, DoNotDependOnTheOtherColumns) {
  if (GetParam().product == Product::kBackwardWeight) GTEST_SKIP() << "its columns are inputs";
  Linear l = forward({2, 4}, {16, 48}, 120, 60, 21);
  l.form = GetParam();
  l.data = Data::kFloats;
  LinearProblem problem(l);
  for (int64_t t = 1; t < l.cols; ++t) {
    for (int64_t k = 0; k < l.depth; ++k) problem.dense().at(t, k) = problem.dense().at(0, k);
  }
  const std::vector<uint32_t> y = problem.result();
  const auto row = static_cast<size_t>(l.rows);
  for (size_t i = row; i < y.size(); ++i) ASSERT_EQ(y[i], y[i % row]) << i / row;
}

// ---- NaN and infinity

TEST_P(LinearProducts, CarryNanAndInfinityThroughKeptWeightsOnly) {
  uint64_t stream = 70000;
  for (const Pattern& pattern : kProductPatterns) {
    for (const Precision type : {Precision::kFp32, Precision::kBf16}) {
      Linear l = forward(pattern, {16, 32}, 35, 37, pattern.block() + 3);
      l.form = GetParam();
      l.value_type = type;
      l.data = Data::kIntegers;  // every ninth weight that is kept is zero
      l.fill = stream % 2 == 0 ? Fill::kFull : Fill::kPartly;
      l.beta = stream % 3 == 0 ? 1.0f : 0.0f;
      l.stream = ++stream;
      LinearProblem problem(l);
      const bool weight = l.form.product == Product::kBackwardWeight;
      const int64_t rows = weight ? l.depth : l.cols, cols = weight ? l.cols : l.depth;
      for_each_isa([&](const std::string& isa) {
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, l.str() + ", " + isa);
        Dice dice(stream);
        for (const float value : {NAN, INFINITY, -INFINITY}) {
          expect_reach(problem, dice.below(rows), dice.below(cols), value);
        }
        expect_reach(problem, rows - 1, cols - 1, NAN);
      });
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(LinearProducts, CarryNanAndInfinityOfTheWeights) {
  for (const Precision type : {Precision::kFp32, Precision::kBf16}) {
    for (const float value : {NAN, INFINITY, -INFINITY}) {
      Linear l = forward({2, 4}, {16, 32}, 35, 37, 13);
      l.form = GetParam();
      l.value_type = type;
      LinearProblem problem(l);
      const Sparse::Entry entry = problem.sparse().entries(type)[50];
      problem.sparse().weights.at(entry.row, entry.col) = value;
      problem.repack(l.tile);
      expect_right(problem);
    }
  }
}

// ---- wrong calls

TEST(WrongCalls, SayWhatIsWrong) {
  LinearProblem problem(forward({2, 4}, {16, 32}, 3, 8, 5));
  const PackedMatrix& w = problem.packed();  // [5, 8]
  std::vector<float> space(1000);
  const auto view = [&](int64_t rows, int64_t cols, int64_t stride) {
    return MatrixView<float>(space.data(), rows, cols, stride);
  };
  const MatrixView<float> x = view(3, 8, 8), y = view(3, 5, 5);
  const auto forward_message = [&](MatrixView<const float> x, float beta, MatrixView<float> y) {
    return message_of([&] { sparse_forward(x, w, nullptr, beta, y); });
  };
  EXPECT_EQ(forward_message(x, 0, y), "(no Error)");
  EXPECT_EQ(forward_message(x, 0.5f, y), "beta 0.5: accepted are 0 and 1");
  EXPECT_EQ(forward_message(x, NAN, y), "beta nan: accepted are 0 and 1");
  EXPECT_EQ(forward_message(view(3, 9, 9), 0, y),
            "x is 3 x 9 with rows 9 apart where the product takes 3 x 8");
  EXPECT_EQ(forward_message(view(3, 8, 7), 0, y),
            "x is 3 x 8 with rows 7 apart where the product takes 3 x 8");
  EXPECT_EQ(forward_message(x, 0, view(4, 5, 5)),
            "y is 4 x 5 with rows 5 apart where the product takes 3 x 5");
  EXPECT_EQ(forward_message(x, 0, view(3, 6, 6)),
            "y is 3 x 6 with rows 6 apart where the product takes 3 x 5");
  EXPECT_EQ(forward_message(x, 0, view(3, 5, 4)),
            "y is 3 x 5 with rows 4 apart where the product takes 3 x 5");
  EXPECT_EQ(forward_message({nullptr, 3, 8}, 0, y), "x is null");
  EXPECT_EQ(forward_message(x, 0, {nullptr, 3, 5}), "y is null");
  EXPECT_TRUE(contains(forward_message(view(-1, 8, 8), 0, view(-1, 5, 5)), "x is -1 x 8"));
  EXPECT_EQ(message_of([&] {
              sparse_forward(MatrixView<const float>(nullptr, 0, 8), w, nullptr, 0,
                             MatrixView<float>(nullptr, 0, 5));
            }),
            "(no Error)");
}

TEST(WrongCalls, OfTheBackwardProductsSayWhatIsWrong) {
  LinearProblem data([] {
    Linear l = forward({2, 4}, {16, 32}, 3, 8, 5);
    l.form = Product::kBackwardData;
    return l;
  }());
  LinearProblem weight([] {
    Linear l = forward({2, 4}, {16, 32}, 3, 8, 5);
    l.form = Product::kBackwardWeight;
    return l;
  }());
  std::vector<float> space(1000);
  const auto view = [&](int64_t rows, int64_t cols) {
    return MatrixView<float>(space.data(), rows, cols);
  };
  const auto data_message = [&](MatrixView<const float> g, float beta, MatrixView<float> dx) {
    return message_of([&] { sparse_backward_data(g, data.packed(), beta, dx); });
  };
  EXPECT_EQ(data_message(view(3, 8), 0, view(3, 5)), "(no Error)");
  EXPECT_EQ(data_message(view(3, 8), -1, view(3, 5)), "beta -1: accepted are 0 and 1");
  EXPECT_TRUE(contains(data_message(view(3, 5), 0, view(3, 5)), "g is 3 x 5"));
  EXPECT_TRUE(contains(data_message(view(3, 8), 0, view(2, 5)), "dx is 2 x 5"));
  EXPECT_EQ(data_message({nullptr, 3, 8}, 0, view(3, 5)), "g is null");

  const auto weight_message = [&](MatrixView<const float> x, float beta, MatrixView<float> dw) {
    return message_of([&] { sparse_backward_weight(weight.packed(), x, beta, dw); });
  };
  EXPECT_EQ(weight_message(view(8, 3), 0, view(5, 3)), "(no Error)");
  EXPECT_EQ(weight_message(view(8, 3), 2, view(5, 3)), "beta 2: accepted are 0 and 1");
  EXPECT_TRUE(contains(weight_message(view(7, 3), 0, view(5, 3)), "x is 7 x 3"));
  EXPECT_TRUE(contains(weight_message(view(8, 3), 0, view(5, 4)), "dw is 5 x 4"));
  EXPECT_TRUE(contains(weight_message(view(8, -3), 0, view(5, -3)), "x is 8 x -3"));
  EXPECT_EQ(weight_message(view(8, 3), 0, {nullptr, 5, 3}), "dw is null");
}

TEST(WrongCalls, TakeNoMatrixThatWasNeverPacked) {
  const PackedMatrix none;
  const MatrixView<float> narrow(nullptr, 3, 0), flat(nullptr, 0, 3);
  const MatrixView<const float> x = narrow, g = flat;
  EXPECT_THROW(sparse_forward(x, none, nullptr, 0, narrow), Error);
  EXPECT_THROW(sparse_backward_data(x, none, 0, narrow), Error);
  EXPECT_THROW(sparse_backward_weight(none, g, 0, flat), Error);
}

// ---- the loops

// B of ones.
void copy_ones(const Range& range, float* to, int64_t stride) {
  for (int64_t r = 0; r < range.rows; ++r) std::fill_n(to + r * stride, range.cols, 1.0f);
}

class CountingSink : public TileSink {
 public:
  CountingSink(int64_t rows, int64_t cols) : cols(cols), times(static_cast<size_t>(rows * cols)) {}
  void take(const Range& range, const float*, int64_t) const override {
    for (int64_t r = range.first_row; r < range.first_row + range.rows; ++r) {
      for (int64_t c = range.first_col; c < range.first_col + range.cols; ++c) {
        ++times.at(static_cast<size_t>(r * cols + c));
      }
    }
  }
  int64_t cols;
  mutable std::vector<int> times;
};

TEST(Loops, CopyADeepOperandInParts) {
  for (const PackTile& tile : {PackTile{16, 192}, PackTile{7, 16}, PackTile{1000, 16}}) {
    for (const int64_t depth : {4096 + 1, 8192 + 17}) {
      const LinearProblem problem(forward({1, 16}, tile, 7, depth, 175));
      std::vector<Range> ranges;  // of one thread
      const SourceOf source([&](const Range& range, float* to, int64_t stride) {
        ranges.push_back(range);
        copy_ones(range, to, stride);
      });
      const CountingSink sink(175, 7);
      multiply_panels(problem.packed(), 7, source, sink);
      EXPECT_GE(ranges.size(), 2u) << "nothing here is deep any more: raise the depths";
      int64_t next = 0;
      for (const Range& range : ranges) {
        EXPECT_EQ(range.first_row, next);
        next += range.rows;
      }
      EXPECT_EQ(next, depth);
      EXPECT_EQ(sink.times, std::vector<int>(sink.times.size(), 1));
    }
  }
}

TEST(Loops, GiveEveryElementOnce) {
  const ThreadsGuard guard;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(2, 4, 2), Pattern(1, 2, 32)}) {
    for (const int64_t rows : {1, 63, 64, 65, 200}) {
      for (const int64_t cols : {1, 31, 32, 33, 65, 129}) {
        for (const int count : {1, 3}) {
          set_threads(1);
          const LinearProblem problem(forward(pattern, {16, 32}, cols, 3, rows));
          set_threads(count);
          const CountingSink sink(rows, cols);
          multiply_panels(problem.packed(), cols, SourceOf(copy_ones), sink);
          ASSERT_EQ(sink.times, std::vector<int>(sink.times.size(), 1))
              << pattern.str() << " " << rows << " x " << cols << ", " << count << " threads";
        }
      }
    }
  }
}

TEST(Transpose, IsRightForAllSmallSizes) {
  for_each_isa([](const std::string& isa) {
    for (int64_t rows = 0; rows <= 19; ++rows) {
      for (int64_t cols = 0; cols <= 19; ++cols) {
        Dice dice(static_cast<uint64_t>(rows * 100 + cols));
        TestMatrix from(rows, cols, dice.below(4), dice.below(2)), to(cols, rows, dice.below(4));
        from.fill(Data::kFloats, dice);
        to.fill(NAN);
        transpose(
            {from.data(), from.view().row_stride, rows, cols, to.data(), to.view().row_stride});
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < cols; ++c) {
            ASSERT_EQ(to.at(c, r), from.at(r, c))
                << rows << " x " << cols << " at " << r << ", " << c << ", " << isa;
          }
        }
        ASSERT_EQ(to.damage() + from.damage(), "") << rows << " x " << cols << ", " << isa;
      }
    }
  });
}

TEST(Transpose, AddsBiasAndWhatWasThere) {
  for_each_isa([](const std::string& isa) {
    for (int64_t rows = 0; rows <= 19; ++rows) {
      for (int64_t cols = 0; cols <= 19; ++cols) {
        for (const bool with_bias : {false, true}) {
          for (const float beta : {0.0f, 1.0f}) {
            Dice dice(static_cast<uint64_t>(rows * 100 + cols));
            TestMatrix from(rows, cols, dice.below(4)),
                to(cols, rows, dice.below(4), dice.below(2));
            TestMatrix before(cols, rows), bias(1, rows);
            from.fill(Data::kFloats, dice);
            before.fill(Data::kFloats, dice);
            bias.fill(Data::kFloats, dice);
            for (int64_t c = 0; c < cols; ++c) {
              for (int64_t r = 0; r < rows; ++r) to.at(c, r) = beta == 0 ? NAN : before.at(c, r);
            }
            transpose_into(
                {from.data(), from.view().row_stride, rows, cols, to.data(), to.view().row_stride},
                with_bias ? bias.data() : nullptr, beta);
            for (int64_t r = 0; r < rows; ++r) {
              for (int64_t c = 0; c < cols; ++c) {
                float want = from.at(r, c);
                if (with_bias) want += bias.at(0, r);
                if (beta != 0) want += before.at(c, r);
                ASSERT_EQ(to.at(c, r), want)
                    << rows << " x " << cols << " at " << r << ", " << c << ", bias " << with_bias
                    << ", beta " << beta << ", " << isa;
              }
            }
            ASSERT_EQ(to.damage() + from.damage() + bias.damage(), "") << rows << " x " << cols;
          }
        }
      }
    }
  });
}

TEST(Tiles, AreSound) {
  for_each_isa([](const std::string&) { expect_sound_tiles(); });
}

}  // namespace
}  // namespace weft::test
