// Cholesky factors and their inverses against naive ones.
#include "weft/prune/cholesky.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "tests/prune/matrices.h"

namespace weft {
namespace {

Matrix positive_definite(int64_t n, uint64_t stream) {
  const Matrix x = draw_matrix(Kind::kGaussian, n + 20, n, stream);
  Matrix a = naive_product(turned(x), x);
  for (int64_t i = 0; i < n; ++i) a.at(i, i) += 1.0;
  return a;
}

Matrix naive_cholesky(const Matrix& a) {
  Matrix l(a.rows, a.rows);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c <= r; ++c) {
      double sum = a.at(r, c);
      for (int64_t k = 0; k < c; ++k) sum -= l.at(r, k) * l.at(c, k);
      l.at(r, c) = r == c ? std::sqrt(sum) : sum / l.at(c, c);
    }
  }
  return l;
}

class CholeskyOf : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Sizes, CholeskyOf, ::testing::Values(1, 5, 95, 96, 97, 200, 500));

TEST_P(CholeskyOf, IsTheFactorWithZerosAboveAndReadsOnlyWhatIsBelow) {
  const int64_t n = GetParam();
  Matrix a = positive_definite(n, 10);
  const Matrix expected = naive_cholesky(a);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = r + 1; c < n; ++c) a.at(r, c) = 1e9;
  }
  ASSERT_EQ(cholesky(a.view()), std::nullopt);
  EXPECT_LT(farthest(a, expected), 1e-10);
}

TEST_P(CholeskyOf, InverseOfTheFactorIsItsInverse) {
  const int64_t n = GetParam();
  const Matrix l = naive_cholesky(positive_definite(n, 11));
  Matrix inverse = l;
  invert_lower(inverse.view());
  Matrix unit(n, n);
  for (int64_t i = 0; i < n; ++i) unit.at(i, i) = 1.0;
  EXPECT_LT(farthest(naive_product(l, inverse), unit), 1e-10);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = r + 1; c < n; ++c) ASSERT_EQ(inverse.at(r, c), 0.0);
  }
}

TEST_P(CholeskyOf, ReturnsTheColumnThatIsNotPositive) {
  const int64_t n = GetParam();
  for (const int64_t bad : {int64_t{0}, n / 2, n - 1}) {
    for (const double value : {-1.0, 0.0, std::numeric_limits<double>::quiet_NaN()}) {
      Matrix a(n, n);
      for (int64_t i = 0; i < n; ++i) a.at(i, i) = 2.0;
      a.at(bad, bad) = value;
      EXPECT_EQ(cholesky(a.view()), std::optional<int64_t>(bad)) << value;
    }
  }
}

TEST(Cholesky, IsTheSameOnTwoThreads) {
  const ThreadsGuard guard;
  Matrix one = positive_definite(250, 12), two = one;
  set_threads(1);
  cholesky(one.view());
  invert_lower(one.view());
  set_threads(2);
  cholesky(two.view());
  invert_lower(two.view());
  EXPECT_EQ(one, two);
}

}  // namespace
}  // namespace weft
