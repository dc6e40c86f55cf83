// The gradient of the weights where a mask keeps it: against sums in double, at every edge, on
// every instruction set, between guards.
#include "weft/kernel/masked/masked_weight.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "tests/products.h"
#include "tests/support.h"
#include "weft/core/parallel.h"

namespace weft::test {
namespace {

struct Problem {
  Pattern pattern;  // that the blocks are made for
  Mask mask;
  TestMatrix g, x, before;
  Data data;
  float beta;
  std::string trace;

  Problem(int64_t tokens, const Mask& kept, const Pattern& pattern, Data data, float beta,
          uint64_t stream)
      : pattern(pattern),
        mask(kept),
        g(tokens, kept.rows(), static_cast<int64_t>(stream % 3)),
        x(tokens, kept.cols(), static_cast<int64_t>(stream % 2)),
        before(kept.rows(), kept.cols(), static_cast<int64_t>(stream % 4)),
        data(data),
        beta(beta),
        trace(fmt::format("{} tokens, {} x {} at {}, beta {}, seed {} stream {}", tokens,
                          kept.rows(), kept.cols(), pattern.str(), beta, test_seed(), stream)) {
    Dice dice(stream);
    g.fill(data, dice);
    x.fill(data, dice);
    if (beta == 0) {
      before.fill(NAN);
    } else {
      before.fill(data, dice);
    }
  }

  TestMatrix result() const {
    TestMatrix dw = before;
    masked_backward_weight(g.view(), x.view(), KeptEntries(mask, pattern), beta, dw.view());
    EXPECT_EQ(dw.damage() + g.damage() + x.damage(), "") << trace;
    return dw;
  }

  Expected expected(int64_t row, int64_t col) const {
    Expected sum;
    if (beta != 0) sum.add(before.at(row, col));
    for (int64_t t = 0; mask.at(row, col) && t < g.rows; ++t) {
      sum.add(static_cast<double>(g.at(t, row)) * static_cast<double>(x.at(t, col)));
    }
    return sum;
  }

  void expect_right() const {
    std::array<std::optional<std::vector<uint32_t>>, 2> first;  // fused or not
    for_each_isa([&](const std::string& isa) {
      const TestMatrix dw = result();
      const auto want = [&](int64_t r, int64_t c) { return expected(r, c); };
      ASSERT_EQ(mismatch(dw.view(), want, data), "") << trace << ", " << isa;
      auto& same = first[fused(isa) ? 1 : 0];
      if (!same) same = dw.bits();
      ASSERT_EQ(difference(dw.bits(), *same, mask.cols()), "") << trace << ", " << isa;
    });
  }
};

TEST(MaskedWeight, IsRightForEveryPatternAndEdge) {
  uint64_t stream = 0;
  for (const Pattern& pattern : kProductPatterns) {
    const KeptEntries probe(Mask(1, 1), pattern);
    for (const int64_t tokens :
         {int64_t{1}, int64_t{7}, int64_t{8}, int64_t{9}, probe.tokens(), 2 * probe.tokens() + 3}) {
      for (const int64_t ins : {int64_t{1}, probe.block() - 1, probe.block(), probe.block() + 5}) {
        Dice dice(++stream);
        const Fill fill = stream % 3 == 0 ? Fill::kPartly : Fill::kFull;
        const int64_t outs = 1 + dice.below(19);
        Problem(tokens, draw_mask(outs, ins, pattern, fill, dice), pattern,
                stream % 2 == 0 ? Data::kIntegers : Data::kFloats, stream % 5 < 2 ? 1.0f : 0.0f,
                stream)
            .expect_right();
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More rows than go together, more columns than are transposed at once.
TEST(MaskedWeight, IsRightForLargeMatrices) {
  Dice dice(1000);
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 16)}) {
    Problem(70, draw_mask(301, 203, pattern, Fill::kFull, dice), pattern, Data::kFloats, 1, 1000)
        .expect_right();
  }
}

// More tokens than are transposed at once.
TEST(MaskedWeight, IsRightForManyTokens) {
  Dice dice(1500);
  const Pattern pattern(1, 16);
  Problem(150, draw_mask(3, 33000, pattern, Fill::kFull, dice), pattern, Data::kFloats, 0, 1500)
      .expect_right();
}

// A mask of its own, as in the middle of a schedule.
TEST(MaskedWeight, TakesAnyMask) {
  uint64_t stream = 2000;
  for (const int chance : {0, 1, 5, 9, 10}) {  // in ten
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 64)}) {
      Dice dice(++stream);
      Mask mask(21, 83);
      for (int64_t r = 0; r < mask.rows(); ++r) {
        for (int64_t c = 0; c < mask.cols(); ++c) mask.set(r, c, dice.below(10) < chance);
      }
      Problem(37, mask, pattern, Data::kFloats, chance % 2 == 0 ? 1.0f : 0.0f, stream)
          .expect_right();
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MaskedWeight, IsRightWhereThereIsNothing) {
  for (const float beta : {0.0f, 1.0f}) {
    Dice dice(3000);
    const Mask some = draw_mask(5, 9, Pattern(2, 4), Fill::kFull, dice);
    Problem(0, some, Pattern(2, 4), Data::kIntegers, beta, 3000).expect_right();
    Problem(4, Mask(0, 9), Pattern(2, 4), Data::kIntegers, beta, 3001).expect_right();
    Problem(4, Mask(5, 0), Pattern(2, 4), Data::kIntegers, beta, 3002).expect_right();
  }
}

TEST(MaskedWeight, DoesNotDependOnThreads) {
  const ThreadsGuard guard;
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 8), Pattern(5, 7)}) {
    Dice dice(4000);
    const Problem problem(300, draw_mask(150, 131, pattern, Fill::kFull, dice), pattern,
                          Data::kFloats, 1, 4000);
    set_threads(1);
    const std::vector<uint32_t> alone = problem.result().bits();
    for (const int count : {2, 3}) {
      set_threads(count);
      ASSERT_EQ(difference(problem.result().bits(), alone, 131), "") << count << " threads";
    }
  }
}

TEST(MaskedWeight, CarriesNanAndInfinityToKeptEntriesOnly) {
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 16)}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      Dice dice(5000);
      Problem problem(77, draw_mask(24, 40, pattern, Fill::kFull, dice), pattern, Data::kIntegers,
                      0, 5000);
      problem.x.at(3, 13) = bad;
      problem.g.at(76, 5) = bad;
      problem.expect_right();
    }
  }
}

TEST(MaskedWeight, SaysWhatIsWrong) {
  TestMatrix g(4, 3), x(4, 8), dw(3, 8);
  const KeptEntries kept(Mask(3, 8), Pattern(2, 4));
  const auto call = [&](MatrixView<const float> a, MatrixView<const float> b, float beta,
                        MatrixView<float> c) {
    return message_of([&] { masked_backward_weight(a, b, kept, beta, c); });
  };
  EXPECT_EQ(call(g.view(), x.view(), 0, dw.view()), "(no Error)");
  EXPECT_EQ(call(g.view(), x.view(), 0.5f, dw.view()), "beta 0.5: accepted are 0 and 1");
  EXPECT_EQ(call(g.view().rows_from(0, 3), x.view(), 0, dw.view()),
            "g [3, 3], x [4, 8], dw [3, 8] and entries of a [3, 8] matrix do not match");
  EXPECT_TRUE(contains(call(g.view(), x.view().cols_from(0, 7), 0, dw.view()), "do not match"));
  EXPECT_TRUE(contains(call(g.view(), x.view(), 0, dw.view().rows_from(0, 2)), "do not match"));
}

}  // namespace
}  // namespace weft::test
