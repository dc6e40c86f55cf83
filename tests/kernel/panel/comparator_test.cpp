// The comparator, the guards and the drawn masks of the tests of products: each must find fault with
// what is wrong.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "tests/linear_problem.h"

namespace weft::test {
namespace {

TEST(Comparator, NoticesAnyWrongInteger) {
  ExpectedMatrix want(2, 3);
  for (int64_t c = 0; c < 3; ++c) want.add(1, c, 1000, 4);
  TestMatrix got(2, 3, 2);
  got.fill(0.0f);
  for (int64_t c = 0; c < 3; ++c) got.at(1, c) = 4000;
  EXPECT_EQ(mismatch(got.view(), want, Data::kIntegers), "");
  got.at(1, 2) = std::nextafter(4000.0f, 0.0f);
  EXPECT_EQ(mismatch(got.view(), want, Data::kFloats), "") << "an ulp is within the bound";
  const std::string message = mismatch(got.view(), want, Data::kIntegers);
  EXPECT_TRUE(contains(message, "1 of 6 wrong, worst at [1, 2]: got 3999.99")) << message;
  EXPECT_TRUE(contains(message, "expected 4000")) << message;
  got.at(1, 2) = NAN;
  EXPECT_NE(mismatch(got.view(), want, Data::kIntegers), "");
  EXPECT_NE(mismatch(got.view(), ExpectedMatrix(2, 2), Data::kIntegers), "");
}

TEST(Comparator, BoundsTheErrorOfFloatsByTheirTerms) {
  ExpectedMatrix want(1, 1);
  for (int i = 0; i < 15; ++i) want.add(0, 0, i % 2 == 0 ? 1.0 : -1.0, 3.0);  // 3, magnitude 45
  const double bound = want.at(0, 0).bound();
  EXPECT_DOUBLE_EQ(bound, 16 * 0x1p-24 / (1 - 16 * 0x1p-24) * 45);
  TestMatrix got(1, 1);
  const auto off_by = [&](double error) {
    got.at(0, 0) = static_cast<float>(3 + error);
    return mismatch(got.view(), want, Data::kFloats);
  };
  EXPECT_EQ(off_by(0.9 * bound), "");
  EXPECT_EQ(off_by(-0.9 * bound), "");
  EXPECT_NE(off_by(1.1 * bound), "");
  EXPECT_NE(off_by(-1.1 * bound), "");
  EXPECT_NE(off_by(NAN), "");
  EXPECT_NE(off_by(INFINITY), "");
}

TEST(Comparator, PrintsTheWorstElement) {
  ExpectedMatrix want(1, 3);
  for (int64_t c = 0; c < 3; ++c) want.add(0, c, 1, 1);
  TestMatrix got(1, 3);
  got.at(0, 0) = 1.1f, got.at(0, 1) = 3, got.at(0, 2) = 1.2f;
  EXPECT_TRUE(contains(mismatch(got.view(), want, Data::kFloats), "3 of 3 wrong, worst at [0, 1]"));
  got.at(0, 2) = NAN;
  EXPECT_TRUE(contains(mismatch(got.view(), want, Data::kFloats), "3 of 3 wrong, worst at [0, 2]"));
}

TEST(Comparator, TakesNanForNanAndInfinityForItself) {
  ExpectedMatrix want(1, 3);
  want.add(0, 0, NAN, 1), want.add(0, 1, INFINITY, 1), want.add(0, 2, -INFINITY, 1);
  TestMatrix got(1, 3);
  got.at(0, 0) = NAN, got.at(0, 1) = INFINITY, got.at(0, 2) = -INFINITY;
  EXPECT_EQ(mismatch(got.view(), want, Data::kFloats), "");
  for (const auto& [at, wrong] : {std::pair<int, float>{0, 1.0f}, {1, 3e38f}, {2, INFINITY}}) {
    const float right = got.at(0, at);
    got.at(0, at) = wrong;
    EXPECT_NE(mismatch(got.view(), want, Data::kFloats), "") << at;
    got.at(0, at) = right;
  }
}

// The smallest slip that a kernel may make: one weight too many, one too few, its neighbour's.
TEST(Comparator, NoticesOneWrongWeightOfMany) {
  Linear l = forward({2, 4}, {16, 32}, 3, 300, 5);
  l.data = Data::kFloats;
  LinearProblem problem(l);
  const ExpectedMatrix want = problem.expected();
  for (const auto& [out, in] : {std::pair<int, int>{0, 0}, {2, 151}, {4, 299}}) {
    TestMatrix y = problem.output();
    problem.run(y);
    ASSERT_EQ(mismatch(y.view(), want, l.data), "");
    const float w = problem.sparse().mask.at(out, in) ? problem.sparse().weights.at(out, in) : 0.5f;
    y.at(1, out) -= w * problem.dense().at(1, in);
    EXPECT_NE(mismatch(y.view(), want, l.data), "") << out << ", " << in;
  }
}

TEST(Comparator, ChecksWhatAProductReturns) {
  LinearProblem problem(forward({2, 4}, {16, 32}, 3, 8, 5));
  expect_right(problem);
  problem.dense().at(1, 3) = 100;  // the expected value is taken first
  const ExpectedMatrix want = LinearProblem(problem.linear()).expected();
  TestMatrix y = problem.output();
  problem.run(y);
  EXPECT_NE(mismatch(y.view(), want, Data::kIntegers), "");
}

TEST(Guards, NoticeWhatIsWrittenOutside) {
  for (const int64_t at : {-64, -1, 3, 4, 8, 13, 15, 15 + 63}) {
    TestMatrix m(3, 3, 2);
    EXPECT_EQ(m.damage(), "");
    m.fill(1.0f);
    EXPECT_EQ(m.damage(), "");
    m.write_guard(at, 1.0f);
    EXPECT_TRUE(contains(m.damage(), fmt::format("at {} from", at))) << at << m.damage();
  }
}

TEST(Guards, AreWatchedBySanitizers) {
  const TestMatrix m(3, 4, 2);
  if (__asan_address_is_poisoned == nullptr) GTEST_SKIP() << "not built with -fsanitize=address";
  for (const int64_t at : {-64, -1, 4, 5, 10, 11, 16, 17, 18, 18 + 63}) {
    EXPECT_TRUE(m.watched(at)) << at;
  }
  for (const int64_t at : {0, 3, 6, 9, 12, 15}) EXPECT_FALSE(m.watched(at)) << at;
}

// Whether a row has at most `keep` in every group, and rows that share are equal.
bool obeys(const Mask& mask, const Pattern& pattern) {
  for (int64_t r = 0; r < mask.rows(); ++r) {
    std::vector<int> kept(static_cast<size_t>(mask.cols() / pattern.group() + 1));
    for (int64_t c = 0; c < mask.cols(); ++c) {
      kept[static_cast<size_t>(c / pattern.group())] += mask.at(r, c);
      if (r % pattern.block() >= pattern.group() &&
          mask.at(r, c) != mask.at(r - pattern.group(), c)) {
        return false;
      }
    }
    for (const int count : kept) {
      if (count > pattern.keep()) return false;
    }
  }
  return true;
}

TEST(DrawnMasks, ObeyTheirPattern) {
  for (const Pattern& pattern : kProductPatterns) {
    Dice dice(1);
    const int64_t rows = pattern.block() + 3, cols = 2 * pattern.block() + 1;
    for (const Fill fill : {Fill::kFull, Fill::kPartly}) {
      EXPECT_TRUE(obeys(draw_mask(rows, cols, pattern, fill, dice), pattern)) << pattern.str();
      const Mask both = draw_transposable_mask(rows, cols, pattern, fill, dice);
      EXPECT_TRUE(obeys(both, pattern)) << pattern.str();
      EXPECT_TRUE(obeys(both.transposed(), pattern)) << pattern.str();
    }
    const Mask full =
        draw_transposable_mask(pattern.block(), pattern.block(), pattern, Fill::kFull, dice);
    EXPECT_EQ(full.count() * pattern.group(),
              int64_t{pattern.block()} * pattern.block() * pattern.keep());
    // One weight more, in the first place that is free.
    if (pattern.keep() == pattern.group()) continue;
    Mask crowded = full;
    int64_t free = 0;
    while (full.at(0, free)) ++free;
    for (int64_t r = 0; r < full.rows(); r += pattern.group()) crowded.set(r, free, true);
    EXPECT_FALSE(obeys(crowded, pattern)) << pattern.str();
    if (pattern.share() == 1) continue;
    Mask unequal = full;
    unequal.set(0, 0, !full.at(0, 0));
    EXPECT_FALSE(obeys(unequal, pattern)) << pattern.str();
  }
}

}  // namespace
}  // namespace weft::test
