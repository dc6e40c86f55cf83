// Forward products with few tokens. Dense: around the vectors and rows that it takes at once. From
// the stream layout: every number of tokens that it unrolls for, every
// width of index, groups that permute and groups that gather, full and not; and the same bits as
// the product from the panel layout.
#include <gtest/gtest.h>

#include "tests/linear_problem.h"
#include "weft/kernel/dense/dense_small_batch.h"
#include "weft/pack/pack.h"

namespace weft::test {
namespace {

PackedMatrix stream_of(LinearProblem& problem, int64_t segment = 0) {
  return pack_stream(problem.sparse().weights.view(), problem.sparse().mask,
                     problem.linear().pattern, problem.linear().value_type, segment);
}

// Right, and the bits of the panel product, on every instruction set.
void expect_right_and_same(LinearProblem& problem) {
  std::vector<std::vector<uint32_t>> from_panels;
  for_each_isa([&](const std::string&) { from_panels.push_back(problem.result()); });
  problem.use(stream_of(problem));
  ASSERT_EQ(problem.packed().layout(), PackLayout::kStream);
  expect_right(problem);
  size_t i = 0;
  for_each_isa([&](const std::string& isa) {
    ASSERT_EQ(difference(problem.result(), from_panels[i++], problem.output_cols()), "")
        << problem.linear().str() << ", " << isa << ", other bits than from panels";
  });
}

Linear drawn(const Pattern& pattern, int64_t tokens, int64_t ins, int64_t outs, uint64_t stream) {
  Dice dice(stream);
  Linear l = forward(pattern, {16, 32}, tokens, ins, outs);
  l.value_type = dice.coin() ? Precision::kFp32 : Precision::kBf16;
  l.data = dice.coin() ? Data::kIntegers : Data::kFloats;
  l.fill = dice.coin() ? Fill::kFull : Fill::kPartly;
  l.bias = dice.coin();
  l.beta = dice.coin() ? 1.0f : 0.0f;
  l.gap = dice.coin() ? 0 : 1 + dice.below(5);
  l.stream = stream;
  return l;
}

TEST(SmallBatch, IsRightForEveryNumberOfTokens) {
  uint64_t stream = 0;
  for (const Pattern& pattern : kProductPatterns) {
    for (int64_t tokens = 0; tokens <= 17; ++tokens) {
      LinearProblem problem(drawn(pattern, tokens, 2 * pattern.group() + 1, 21, ++stream));
      expect_right_and_same(problem);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Rows around the sixteen that are adjacent and around a work item of the threads; depths
// around groups, and around the 64 columns that the packer takes at once.
TEST(SmallBatch, IsRightAroundBlocksAndGroups) {
  uint64_t stream = 1000;
  for (const Pattern& pattern : kProductPatterns) {
    std::vector<int64_t> depths = edges(pattern.group());
    for (const int64_t depth : {63, 64, 65, 129, 200}) depths.push_back(depth);
    for (const int64_t depth : depths) {
      for (const int64_t outs : {0, 1, 15, 16, 17, 33, 64, 65, 140}) {
        Dice dice(++stream);
        LinearProblem problem(drawn(pattern, 1 + dice.below(6), depth, outs, stream));
        expect_right_and_same(problem);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

// Whatever the index: 1, 2, 4 and 8 bits, with and without one to spare for slots that hold
// nothing.
TEST(SmallBatch, IsRightForEveryPatternAndPrecision) {
  uint64_t stream = 3000;
  std::vector<Pattern> patterns = kProductPatterns;
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64}) {
    patterns.push_back(Pattern((group + 1) / 2, group));
  }
  for (const Pattern& pattern : patterns) {
    for (const Precision type : {Precision::kFp32, Precision::kBf16}) {
      for (const Fill fill : {Fill::kFull, Fill::kPartly}) {
        for (const Data data : {Data::kIntegers, Data::kFloats}) {
          Linear l = drawn(pattern, 7, 3 * pattern.group() + 2, 37, ++stream);
          l.value_type = type;
          l.fill = fill;
          l.data = data;
          LinearProblem problem(l);
          expect_right_and_same(problem);
          if (::testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

// Groups that restart with every segment, whole or short at its end.
TEST(SmallBatch, IsRightForSegments) {
  uint64_t stream = 5000;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(5, 7), Pattern(3, 16)}) {
    for (const int64_t segment : {1, 4, 6, 21}) {
      for (const Fill fill : {Fill::kFull, Fill::kPartly}) {
        Dice dice(++stream);
        const int64_t depth = 3 * segment, outs = 19, tokens = 5;
        const Sparse w =
            draw_sparse(draw_mask(outs, depth, pattern, fill, dice, segment), Data::kFloats, dice);
        const PackedMatrix packed =
            pack_stream(w.weights.view(), w.mask, pattern, Precision::kFp32, segment);
        TestMatrix x(tokens, depth, 2);
        x.fill(Data::kFloats, dice);
        for_each_isa([&](const std::string& isa) {
          // The first time as it is, then with a NaN: what stands behind a short group is not its.
          for (int64_t nan = -1; nan < depth; ++nan) {
            if (nan >= 0) x.at(nan % tokens, nan) = NAN;
            ExpectedMatrix want(tokens, outs);
            for (const Sparse::Entry& e : w.entries(Precision::kFp32)) {
              for (int64_t t = 0; t < tokens; ++t) want.add(t, e.row, x.at(t, e.col), e.value);
            }
            TestMatrix y(tokens, outs, 3);
            y.fill(NAN);
            sparse_forward(x.view(), packed, nullptr, 0, y.view());
            if (nan >= 0) x.at(nan % tokens, nan) = draw(Data::kFloats, dice);
            ASSERT_EQ(mismatch(y.view(), want, Data::kFloats) + y.damage(), "")
                << pattern.str() << ", segments of " << segment << ", NaN in column " << nan << ", "
                << isa;
          }
        });
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(SmallBatch, CarriesNanAndInfinityThroughKeptWeightsOnly) {
  uint64_t stream = 6000;
  for (const Pattern& pattern : kProductPatterns) {
    for (const Fill fill : {Fill::kFull, Fill::kPartly}) {
      Linear l = drawn(pattern, 5, 2 * pattern.group() + 1, 35, ++stream);
      l.data = Data::kIntegers;  // every ninth weight that is kept is zero
      l.fill = fill;
      LinearProblem problem(l);
      problem.use(stream_of(problem));
      for_each_isa([&](const std::string& isa) {
        const ::testing::ScopedTrace trace(__FILE__, __LINE__, l.str() + ", " + isa);
        for (int64_t in = 0; in < l.depth; in += 1 + l.depth / 12) {
          expect_reach(problem, in % l.cols, in, in % 3 == 0 ? INFINITY : NAN);
        }
        expect_reach(problem, l.cols - 1, l.depth - 1, NAN);
        expect_reach(problem, 0, l.depth - 2, -INFINITY);
      });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(SmallBatch, DoesNotDependOnThreads) {
  const ThreadsGuard guard;
  uint64_t stream = 7000;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(2, 8), Pattern(1, 16), Pattern(2, 4, 2)}) {
    for (const int64_t tokens : {1, 4, 7}) {
      Linear l = drawn(pattern, tokens, 90, 300, ++stream);
      l.data = Data::kFloats;
      LinearProblem problem(l);
      problem.use(stream_of(problem));
      for_each_isa([&](const std::string& isa) {
        set_threads(1);
        const std::vector<uint32_t> want = problem.result();
        for (const int count : {2, 3, 5}) {
          set_threads(count);
          ASSERT_EQ(difference(problem.result(), want, problem.output_cols()), "")
              << l.str() << ", " << isa << ", " << count << " threads";
        }
      });
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// What a token gets does not depend on how many come with it.
TEST(SmallBatch, GivesATokenTheSameBitsInAnyBatch) {
  Linear l = forward({2, 4}, {16, 32}, 17, 90, 40);
  l.data = Data::kFloats;
  LinearProblem problem(l);
  problem.use(stream_of(problem));
  const std::vector<uint32_t> all = problem.result();
  for (int64_t tokens = 1; tokens < l.cols; ++tokens) {
    TestMatrix y(tokens, l.rows);
    sparse_forward({problem.dense().data(), tokens, l.depth}, problem.packed(), nullptr, 0,
                   y.view());
    const std::vector<uint32_t> some = y.bits();
    ASSERT_EQ(
        difference(some, {all.begin(), all.begin() + static_cast<int64_t>(some.size())}, l.rows),
        "")
        << tokens << " tokens";
  }
}

TEST(SmallBatch, TakesWrongCallsForWhatTheyAre) {
  LinearProblem problem(forward({2, 4}, {16, 32}, 3, 8, 5));
  const PackedMatrix w = stream_of(problem);
  std::vector<float> space(100);
  const auto view = [&](int64_t rows, int64_t cols) {
    return MatrixView<float>(space.data(), rows, cols);
  };
  EXPECT_EQ(message_of([&] { sparse_forward(view(3, 7), w, nullptr, 0, view(3, 5)); }),
            "x is 3 x 7 with rows 7 apart where the product takes 3 x 8");
  EXPECT_EQ(message_of([&] { sparse_forward(view(3, 8), w, nullptr, 0.5f, view(3, 5)); }),
            "beta 0.5: accepted are 0 and 1");
  EXPECT_EQ(message_of([&] {
              sparse_forward({nullptr, 3, 8}, w, nullptr, 0, view(3, 5));
            }),
            "x is null");
  EXPECT_EQ(message_of([&] { sparse_backward_data(view(3, 8), w, 0, view(3, 5)); }),
            "no kernel computes bwd_x in fp32 from fp32 activations and a stream pack");
  EXPECT_EQ(message_of([&] { sparse_backward_weight(w, view(8, 3), 0, view(5, 3)); }),
            "no kernel computes bwd_w in fp32 from fp32 activations and a stream pack");
}

// ---- dense weights

TEST(DenseSmallBatch, IsRightAroundVectorsAndRows) {
  uint64_t stream = 8000;
  for (const int64_t ins : {0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 47, 64, 65, 511, 512, 513}) {
    for (const int64_t outs : {0, 1, 3, 4, 5, 8, 35}) {
      for (const int64_t tokens : {0, 1, 2, 5}) {
        Dice dice(++stream);
        const Data data = dice.coin() ? Data::kIntegers : Data::kFloats;
        const bool bias = dice.coin(), add = dice.coin();
        TestMatrix x(tokens, ins, 2), w(outs, ins, dice.coin() ? 0 : 3), b(1, outs),
            y(tokens, outs, 1);
        for (TestMatrix* matrix : {&x, &w, &b, &y}) matrix->fill(data, dice);
        ExpectedMatrix want(tokens, outs);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t o = 0; o < outs; ++o) {
            for (int64_t i = 0; i < ins; ++i) want.add(t, o, x.at(t, i), w.at(o, i));
            if (bias) want.add(t, o, 1, b.at(0, o));
            if (add) want.add(t, o, 1, y.at(t, o));
          }
        }
        for_each_isa([&](const std::string& isa) {
          TestMatrix out = y;
          if (!add) out.fill(NAN);
          dense_forward_small_batch(x.view(), w.view(), bias ? b.data() : nullptr, add ? 1 : 0,
                                    out.view());
          ASSERT_EQ(mismatch(out.view(), want, data) + out.damage(), "")
              << tokens << " x " << ins << " x " << outs << ", " << isa << ", stream " << stream;
        });
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(DenseSmallBatch, GivesATokenTheSameBitsInAnyBatchAndOnAnyThreads) {
  const ThreadsGuard guard;
  Dice dice(9000);
  TestMatrix x(7, 333), w(1000, 333), all(7, 1000), one(1, 1000);
  x.fill(Data::kFloats, dice);
  w.fill(Data::kFloats, dice);
  set_threads(1);
  dense_forward_small_batch(x.view(), w.view(), nullptr, 0, all.view());
  for (const int count : {1, 2, 3, 5}) {
    set_threads(count);
    for (int64_t t = 0; t < 7; ++t) {
      dense_forward_small_batch(x.view().rows_from(t, 1), w.view(), nullptr, 0, one.view());
      for (int64_t o = 0; o < 1000; ++o) ASSERT_EQ(one.at(0, o), all.at(t, o)) << t << ", " << o;
    }
  }
}

}  // namespace
}  // namespace weft::test
