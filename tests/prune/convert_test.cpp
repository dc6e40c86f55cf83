// weft/prune, piece by piece: every part against a naive one written here, every method of the
// table against inputs that it is measured on anew.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <limits>
#include <optional>

#include "tests/model_files.h"
#include "tests/weights.h"
#include "weft/checkpoint/checkpoint.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"
#include "weft/prune/absorb.h"
#include "weft/prune/auto_pattern.h"
#include "weft/prune/cholesky.h"
#include "weft/prune/convert_layer.h"
#include "weft/prune/double_product.h"
#include "weft/prune/gram.h"
#include "weft/prune/least_squares.h"
#include "weft/prune/norm_behind.h"
#include "weft/prune/sparsegpt.h"
#include "weft/prune/support.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<double> values;

  Matrix(int64_t rows, int64_t cols)
      : rows(rows), cols(cols), values(static_cast<size_t>(rows * cols)) {}
  Matrix(int64_t rows, int64_t cols, std::vector<double> values)
      : rows(rows), cols(cols), values(std::move(values)) {}

  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols + c)]; }
  const double* data() const { return values.data(); }
  MatrixView<double> view() { return {values.data(), rows, cols}; }
  MatrixView<const double> view() const { return {values.data(), rows, cols}; }

  friend bool operator==(const Matrix&, const Matrix&) = default;
};

Matrix draw_matrix(Kind kind, int64_t rows, int64_t cols, uint64_t stream) {
  return {rows, cols, draw_weights<double>(kind, {rows, cols}, stream).values};
}

Matrix naive_product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t k = 0; k < a.cols; ++k) {
      for (int64_t i = 0; i < b.cols; ++i) c.at(r, i) += a.at(r, k) * b.at(k, i);
    }
  }
  return c;
}

Matrix turned(const Matrix& a) {
  Matrix b(a.cols, a.rows);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) b.at(c, r) = a.at(r, c);
  }
  return b;
}

// The largest entry of the difference; NaN if there is one.
double farthest(const Matrix& a, const Matrix& b) {
  EXPECT_TRUE(a.rows == b.rows && a.cols == b.cols);
  double most = 0.0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double off = std::abs(a.values[i] - b.values[i]);
    if (!(off <= most)) most = off;
  }
  return most;
}

// Samples as layers see them: not centred, and correlated. noise: what no other column has.
Matrix draw_inputs(int64_t samples, int64_t cols, uint64_t stream, double noise = 0.7) {
  Matrix x(samples, cols);
  const Rng own(test_seed(), stream), shared(test_seed(), stream + 1),
      mixing(test_seed(), stream + 2);
  constexpr uint64_t kFactors = 5;
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t c = 0; c < cols; ++c) {
      double value = 0.4 + 0.1 * static_cast<double>(c % 3);
      for (uint64_t f = 0; f < kFactors; ++f) {
        value += 0.5 * shared.normal(static_cast<uint64_t>(s) * kFactors + f) *
                 mixing.normal(static_cast<uint64_t>(c) * kFactors + f);
      }
      x.at(s, c) = value + noise * own.normal(static_cast<uint64_t>(s * cols + c));
    }
  }
  return x;
}

Gram naive_gram(const Matrix& x) {
  Gram gram;
  gram.cols = x.cols;
  gram.second = naive_product(turned(x), x).values;
  gram.mean.assign(static_cast<size_t>(x.cols), 0.0);
  gram.samples = x.rows;
  for (int64_t s = 0; s < x.rows; ++s) {
    for (int64_t c = 0; c < x.cols; ++c) gram.mean[static_cast<size_t>(c)] += x.at(s, c);
  }
  for (auto* values : {&gram.second, &gram.mean}) {
    for (double& value : *values) value /= static_cast<double>(x.rows);
  }
  return gram;
}

// a x = b by Gaussian elimination with pivoting.
std::vector<double> solve_naive(Matrix a, std::vector<double> b) {
  const int64_t n = a.rows;
  for (int64_t k = 0; k < n; ++k) {
    int64_t pivot = k;
    for (int64_t r = k + 1; r < n; ++r) {
      if (std::abs(a.at(r, k)) > std::abs(a.at(pivot, k))) pivot = r;
    }
    for (int64_t c = 0; c < n; ++c) std::swap(a.at(k, c), a.at(pivot, c));
    std::swap(b[static_cast<size_t>(k)], b[static_cast<size_t>(pivot)]);
    for (int64_t r = k + 1; r < n; ++r) {
      const double factor = a.at(r, k) / a.at(k, k);
      for (int64_t c = k; c < n; ++c) a.at(r, c) -= factor * a.at(k, c);
      b[static_cast<size_t>(r)] -= factor * b[static_cast<size_t>(k)];
    }
  }
  for (int64_t k = n - 1; k >= 0; --k) {
    for (int64_t c = k + 1; c < n; ++c) {
      b[static_cast<size_t>(k)] -= a.at(k, c) * b[static_cast<size_t>(c)];
    }
    b[static_cast<size_t>(k)] /= a.at(k, k);
  }
  return b;
}

Matrix inverse_naive(const Matrix& a) {
  Matrix inverse(a.rows, a.rows);
  for (int64_t c = 0; c < a.rows; ++c) {
    std::vector<double> unit(static_cast<size_t>(a.rows), 0.0);
    unit[static_cast<size_t>(c)] = 1.0;
    const std::vector<double> column = solve_naive(a, unit);
    for (int64_t r = 0; r < a.rows; ++r) inverse.at(r, c) = column[static_cast<size_t>(r)];
  }
  return inverse;
}

std::string zero_outside_support(const Matrix& x, const Mask& support) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) {
      if (!support.at(r, c) && x.at(r, c) != 0.0) {
        return fmt::format("[{}, {}] is {} outside the support", r, c, x.at(r, c));
      }
    }
  }
  return "";
}

Matrix masked(const Matrix& w, const Mask& support) {
  Matrix x = w;
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t c = 0; c < w.cols; ++c) {
      if (!support.at(r, c)) x.at(r, c) = 0.0;
    }
  }
  return x;
}

// ─── double products ───

struct Product {
  int64_t m, k, n;
};

// c lies inside a larger matrix whose other entries must stay.
Matrix framed_product(double alpha, const Matrix& a, const Matrix& b, const Matrix& start) {
  constexpr double kCanary = 12345.0;
  const int64_t m = start.rows, n = start.cols, stride = n + 5;
  const auto strided = [](const Matrix& from, int64_t gap) {
    Matrix to(from.rows, from.cols + gap);
    std::ranges::fill(to.values, std::numeric_limits<double>::quiet_NaN());
    for (int64_t r = 0; r < from.rows; ++r) {
      for (int64_t c = 0; c < from.cols; ++c) to.at(r, c) = from.at(r, c);
    }
    return to;
  };
  const Matrix a_wide = strided(a, 3), b_wide = strided(b, 1);
  Matrix frame(m + 2, stride);
  std::ranges::fill(frame.values, kCanary);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) frame.at(r + 1, c + 2) = start.at(r, c);
  }
  add_product(alpha, a_wide.view().cols_from(0, a.cols), b_wide.view().cols_from(0, b.cols),
              frame.view().rows_from(1, m).cols_from(2, n));
  Matrix found(m, n);
  for (int64_t r = 0; r < m + 2; ++r) {
    for (int64_t c = 0; c < stride; ++c) {
      const bool inside = r >= 1 && r <= m && c >= 2 && c < n + 2;
      if (inside) found.at(r - 1, c - 2) = frame.at(r, c);
      if (!inside) {
        EXPECT_EQ(frame.at(r, c), kCanary) << "at [" << r << ", " << c << "]";
      }
    }
  }
  return found;
}

std::vector<Product> product_shapes() {
  std::vector<Product> shapes = {{0, 3, 3}, {3, 0, 3}, {3, 3, 0}, {0, 0, 0}};
  const std::vector<int64_t> rows = {1, 3, 4, 5, 9, 95, 96, 97, 193};
  const std::vector<int64_t> cols = {1, 5, 6, 7, 11, 12, 13, 23, 24, 25, 143, 144, 145, 289};
  const std::vector<int64_t> depths = {1, 2, 191, 192, 193, 385};
  for (const int64_t m : rows) shapes.push_back({m, 7, 13});
  for (const int64_t n : cols) shapes.push_back({5, 3, n});
  for (const int64_t k : depths) shapes.push_back({5, k, 13});
  shapes.insert(shapes.end(), {{97, 193, 145}, {193, 5, 289}, {1, 385, 1}, {96, 192, 144}});
  return shapes;
}

TEST(AddProduct, IsExactOnIntegersAtEveryEdgeAndStaysInside) {
  for (const auto& [m, k, n] : product_shapes()) {
    SCOPED_TRACE(fmt::format("[{}, {}] x [{}, {}], seed {}", m, k, k, n, test_seed()));
    const Matrix a = draw_matrix(Kind::kIntegers, m, k, 1);
    const Matrix b = draw_matrix(Kind::kIntegers, k, n, 2);
    const Matrix start = draw_matrix(Kind::kIntegers, m, n, 3);
    Matrix expected = naive_product(a, b);
    for (size_t i = 0; i < expected.values.size(); ++i) {
      expected.values[i] = start.values[i] - 2 * expected.values[i];
    }
    EXPECT_EQ(framed_product(-2.0, a, b, start), expected);
  }
}

TEST(AddProduct, IsThatOfDoubleAndHasTheSameBitsOnTwoThreads) {
  const ThreadsGuard guard;
  for (const auto& [m, k, n] : {Product{97, 193, 145}, {193, 31, 289}, {5, 385, 1}}) {
    const Matrix a = draw_matrix(Kind::kGaussian, m, k, 4);
    const Matrix b = draw_matrix(Kind::kGaussian, k, n, 5);
    set_threads(1);
    const Matrix one = framed_product(1.0, a, b, Matrix(m, n));
    set_threads(2);
    EXPECT_EQ(framed_product(1.0, a, b, Matrix(m, n)), one);
    EXPECT_LT(farthest(one, naive_product(a, b)), 1e-12);
  }
}

TEST(AddProduct, RefusesShapesThatDoNotFit) {
  const Matrix a(2, 3), b(4, 2);
  Matrix c(2, 2);
  EXPECT_TRUE(contains(message_of([&] { add_product(1.0, a.view(), b.view(), c.view()); }),
                       "[2, 3] and [4, 2] is not [2, 2]"));
}

// ─── Cholesky ───

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

// ─── Gram matrices ───

TEST(GramBuilder, IsTheNaiveSumAtEveryBorderOfAChunk) {
  for (const int64_t samples : {1, 2, 511, 512, 513, 1025}) {
    for (const int64_t cols : {1, 13, 97}) {
      SCOPED_TRACE(fmt::format("{} samples of {}, seed {}", samples, cols, test_seed()));
      const Matrix x = draw_matrix(Kind::kIntegers, samples, cols, 20);
      const std::vector<float> narrow(x.values.begin(), x.values.end());
      GramBuilder wide_builder(cols), narrow_builder(cols);
      wide_builder.add(x.view());
      for (int64_t s = 0; s < samples; s += 100) {  // pieces
        narrow_builder.add(MatrixView<const float>(narrow.data(), samples, cols)
                               .rows_from(s, std::min<int64_t>(100, samples - s)));
      }
      const Gram expected = naive_gram(x);
      for (GramBuilder* builder : {&wide_builder, &narrow_builder}) {
        const Gram gram = builder->finish();
        EXPECT_EQ(gram.samples, samples);
        EXPECT_LT(farthest({cols, cols, gram.second}, {cols, cols, expected.second}), 1e-14);
        EXPECT_LT(farthest({1, cols, gram.mean}, {1, cols, expected.mean}), 1e-14);
      }
    }
  }
}

TEST(GramBuilder, SumsWideMatricesAndStridedOnes) {
  const int64_t cols = 2 * 384 + 7, samples = 30;
  const Matrix x = draw_matrix(Kind::kIntegers, samples, cols + 2, 21);
  Matrix inner(samples, cols);
  for (int64_t s = 0; s < samples; ++s) {
    for (int64_t c = 0; c < cols; ++c) inner.at(s, c) = x.at(s, c + 1);
  }
  GramBuilder builder(cols);
  builder.add(x.view().cols_from(1, cols));
  EXPECT_LT(farthest({cols, cols, builder.finish().second}, {cols, cols, naive_gram(inner).second}),
            1e-14);
}

TEST(GramBuilder, RefusesWhatIsNotSamples) {
  GramBuilder builder(3);
  EXPECT_TRUE(contains(message_of([&] { builder.add(Matrix(1, 4).view()); }), "4 values"));
  EXPECT_TRUE(contains(message_of([&] { builder.finish(); }), "no samples"));
  EXPECT_TRUE(contains(message_of([] { GramBuilder(0); }), "0 columns"));
}

TEST(Gram, CenteredIsTheCovariance) {
  const Matrix x = draw_inputs(50, 9, 22);
  const Gram gram = naive_gram(x);
  Matrix moved = x;
  for (int64_t s = 0; s < x.rows; ++s) {
    for (int64_t c = 0; c < x.cols; ++c) moved.at(s, c) -= gram.mean[static_cast<size_t>(c)];
  }
  EXPECT_LT(farthest({9, 9, gram.centered().second}, {9, 9, naive_gram(moved).second}), 1e-14);
  Gram unknown = gram;
  unknown.mean.clear();
  EXPECT_TRUE(contains(message_of([&] { unknown.centered(); }), "not known"));
}

TEST(Gram, EnergiesOfRowsAreTheirOutputs) {
  const Matrix x = draw_inputs(40, 11, 23), d = draw_matrix(Kind::kGaussian, 400, 11, 24);
  const std::vector<double> energies = row_energies(d.view(), naive_gram(x).view());
  const Matrix outputs = naive_product(d, turned(x));
  for (int64_t r = 0; r < d.rows; ++r) {
    double expected = 0.0;
    for (int64_t s = 0; s < x.rows; ++s) expected += outputs.at(r, s) * outputs.at(r, s) / 40;
    ASSERT_NEAR(energies[static_cast<size_t>(r)], expected, 1e-12 * expected) << "row " << r;
  }
}

// ─── least squares ───

struct SquaresProblem {
  Matrix w;
  Gram gram;
  Mask support;
};

SquaresProblem draw_problem(int64_t rows, const Matrix& x, const Pattern& pattern,
                            uint64_t stream) {
  const Matrix w = draw_matrix(Kind::kGaussian, rows, x.cols, stream);
  return {w, naive_gram(x), find_support(w.data(), {rows, x.cols, 1}, {pattern, false, {}, {}})};
}

// Row by row, G_SS x_S = (w G)_S.
Matrix exact_squares(const SquaresProblem& problem) {
  const auto& [w, gram, support] = problem;
  const Matrix wg = naive_product(w, {w.cols, w.cols, gram.second});
  Matrix x(w.rows, w.cols);
  for (int64_t r = 0; r < w.rows; ++r) {
    std::vector<int64_t> kept;
    for (int64_t c = 0; c < w.cols; ++c) {
      if (support.at(r, c)) kept.push_back(c);
    }
    const auto n = static_cast<int64_t>(kept.size());
    Matrix a(n, n);
    std::vector<double> b;
    for (int64_t i = 0; i < n; ++i) {
      b.push_back(wg.at(r, kept[static_cast<size_t>(i)]));
      for (int64_t j = 0; j < n; ++j) {
        a.at(i, j) = gram.view().at(kept[static_cast<size_t>(i)], kept[static_cast<size_t>(j)]);
      }
    }
    const std::vector<double> solution = solve_naive(a, b);
    for (int64_t i = 0; i < n; ++i) {
      x.at(r, kept[static_cast<size_t>(i)]) = solution[static_cast<size_t>(i)];
    }
  }
  return x;
}

std::vector<double> errors_of(const SquaresProblem& problem, const Matrix& x) {
  Matrix d = problem.w;
  for (size_t i = 0; i < d.values.size(); ++i) d.values[i] -= x.values[i];
  const Matrix dg = naive_product(d, {d.cols, d.cols, problem.gram.second});
  std::vector<double> errors;
  for (int64_t r = 0; r < d.rows; ++r) {
    double sum = 0.0;
    for (int64_t c = 0; c < d.cols; ++c) sum += d.at(r, c) * dg.at(r, c);
    errors.push_back(sum);
  }
  return errors;
}

struct Solved {
  Matrix x;
  LeastSquaresReport report;
};

Solved solve_squares(const SquaresProblem& problem, double tolerance, int64_t iterations) {
  Solved solved{masked(problem.w, problem.support), {}};
  solved.report = least_squares(problem.w.view(), problem.gram.view(), problem.support,
                                {tolerance, iterations}, solved.x.view());
  return solved;
}

void expect_no_worse(const SquaresProblem& problem, const Matrix& x, const Matrix& start) {
  const std::vector<double> before = errors_of(problem, start), after = errors_of(problem, x);
  for (size_t r = 0; r < before.size(); ++r) {
    EXPECT_LE(after[r], before[r] * (1 + 1e-12)) << "row " << r << ", seed " << test_seed();
  }
}

TEST(LeastSquares, IsTheSolutionOfTheNormalEquations) {
  for (const int64_t rows : {1, 7, 390}) {  // 384 at a time
    const SquaresProblem problem = draw_problem(rows, draw_inputs(300, 36, 30), Pattern(2, 4), 33);
    const Solved solved = solve_squares(problem, 1e-18, 10'000);
    EXPECT_EQ(solved.report.unfinished_rows, 0);
    EXPECT_LT(farthest(solved.x, exact_squares(problem)), 1e-8) << rows << " rows";
    EXPECT_EQ(zero_outside_support(solved.x, problem.support), "");
  }
}

TEST(LeastSquares, ReachesTheErrorOfTheSolutionAlsoWhereThatIsHardToFind) {
  for (const auto& [noise, bound] : {std::pair(0.1, 1e-10), {0.01, 1e-10}, {0.001, 1e-7}}) {
    const SquaresProblem problem =
        draw_problem(5, draw_inputs(200, 32, 34, noise), Pattern(2, 4), 37);
    const Solved solved = solve_squares(problem, 1e-14, 20'000);
    const std::vector<double> best = errors_of(problem, exact_squares(problem));
    const std::vector<double> found = errors_of(problem, solved.x);
    EXPECT_EQ(solved.report.unfinished_rows, 0) << noise;
    for (size_t r = 0; r < best.size(); ++r) {
      EXPECT_NEAR(found[r], best[r], bound * best[r])
          << "row " << r << ", noise " << noise << ", seed " << test_seed();
    }
  }
}

TEST(LeastSquares, DeadInputsKeepTheirStart) {
  Matrix x = draw_inputs(100, 24, 40);
  const std::vector<int64_t> dead = {0, 5, 6, 7, 23};
  for (int64_t s = 0; s < x.rows; ++s) {
    for (const int64_t c : dead) x.at(s, c) = 0.0;
  }
  const SquaresProblem problem = draw_problem(6, x, Pattern(2, 4), 43);
  const Solved solved = solve_squares(problem, 1e-12, 5000);
  EXPECT_EQ(solved.report.unfinished_rows, 0);
  for (int64_t r = 0; r < 6; ++r) {
    for (const int64_t c : dead) {
      EXPECT_EQ(solved.x.at(r, c), problem.support.at(r, c) ? problem.w.at(r, c) : 0.0);
    }
  }
  expect_no_worse(problem, solved.x, masked(problem.w, problem.support));
}

// The least change of the start, each column weighed by its size, that fits the samples exactly: of
// all solutions of a singular problem, the one that leaves alone what no sample has.
Matrix least_change(const SquaresProblem& problem, const Matrix& inputs) {
  Matrix x = masked(problem.w, problem.support);
  for (int64_t r = 0; r < x.rows; ++r) {
    Matrix a(inputs.rows, inputs.rows);  // X_S D⁻¹ X_Sᵀ
    std::vector<double> b(static_cast<size_t>(inputs.rows), 0.0);
    for (int64_t c = 0; c < x.cols; ++c) {
      for (int64_t s = 0; s < inputs.rows; ++s) {
        b[static_cast<size_t>(s)] += (problem.w.at(r, c) - x.at(r, c)) * inputs.at(s, c);
        for (int64_t t = 0; t < inputs.rows && problem.support.at(r, c); ++t) {
          a.at(s, t) += inputs.at(s, c) * inputs.at(t, c) / problem.gram.diagonal(c);
        }
      }
    }
    const std::vector<double> factors = solve_naive(a, b);
    for (int64_t c = 0; c < x.cols; ++c) {
      for (int64_t s = 0; s < inputs.rows && problem.support.at(r, c); ++s) {
        x.at(r, c) += factors[static_cast<size_t>(s)] * inputs.at(s, c) / problem.gram.diagonal(c);
      }
    }
  }
  return x;
}

TEST(LeastSquares, FewerSamplesThanWeightsAreFittedByTheLeastChange) {
  for (const double tolerance : {1e-2, 1e-3, 1e-6, 1e-12}) {
    const Matrix inputs = draw_inputs(10, 40, 44);
    const SquaresProblem problem = draw_problem(50, inputs, Pattern(2, 4), 47);
    const Matrix start = masked(problem.w, problem.support);
    const Matrix expected = least_change(problem, inputs);
    for (const int64_t iterations : {5, 20, 200, 5000}) {
      const Solved solved = solve_squares(problem, tolerance, iterations);
      SCOPED_TRACE(fmt::format("tolerance {}, {} of {} steps, seed {}", tolerance,
                               solved.report.most_steps, iterations, test_seed()));
      const std::vector<double> was = errors_of(problem, start);
      const std::vector<double> is = errors_of(problem, solved.x);
      for (int64_t r = 0; r < start.rows; ++r) {
        double change = 0.0, least = 0.0;
        for (int64_t c = 0; c < start.cols; ++c) {
          const double d = problem.gram.diagonal(c);
          change += d * std::pow(solved.x.at(r, c) - start.at(r, c), 2);
          least += d * std::pow(expected.at(r, c) - start.at(r, c), 2);
        }
        EXPECT_LE(change, (tolerance >= 1e-3 ? 1.001 : 20.0) * least) << "row " << r;
        if (iterations < 200) continue;
        EXPECT_LT(std::abs(is[static_cast<size_t>(r)]),
                  (10 * tolerance + 1e-12) * was[static_cast<size_t>(r)]);
      }
      if (iterations >= 200) {
        EXPECT_EQ(solved.report.unfinished_rows, 0);
      }
    }
  }
}

TEST(LeastSquares, NoStepMakesARowWorseAndNoneIsOneTooMany) {
  for (const double noise : {0.7, 0.01, 1e-4, 1e-6}) {
    for (const int64_t samples : {10, 200}) {
      const SquaresProblem problem =
          draw_problem(8, draw_inputs(samples, 32, 50, noise), Pattern(1, 4), 53);
      for (const int64_t iterations : {1, 2, 3, 5, 8, 13, 40, 200, 1000}) {
        SCOPED_TRACE(fmt::format("noise {}, {} samples, {} steps", noise, samples, iterations));
        const Solved solved = solve_squares(problem, 1e-14, iterations);
        expect_no_worse(problem, solved.x, masked(problem.w, problem.support));
        EXPECT_LE(solved.report.most_steps, iterations);
        EXPECT_EQ(zero_outside_support(solved.x, problem.support), "");
      }
    }
  }
}

TEST(LeastSquares, CountsRowsThatAreNotDone) {
  SquaresProblem problem = draw_problem(9, draw_inputs(200, 32, 54), Pattern(2, 4), 57);
  for (int64_t c = 0; c < 32; ++c) {  // two rows have nothing to gain
    for (const int64_t r : {2, 3}) problem.support.set(r, c, true);
  }
  const LeastSquaresReport one = solve_squares(problem, 1e-6, 1).report;
  EXPECT_EQ(one.unfinished_rows, 7);
  EXPECT_EQ(one.most_steps, 1);
  const LeastSquaresReport many = solve_squares(problem, 1e-6, 1000).report;
  EXPECT_EQ(many.unfinished_rows, 0);
  EXPECT_GT(many.most_steps, 3);
}

// Inputs and weights may have any scale.
TEST(LeastSquares, DoesNotDependOnUnits) {
  const SquaresProblem problem = draw_problem(5, draw_inputs(200, 32, 60), Pattern(2, 4), 63);
  const Solved expected = solve_squares(problem, 1e-10, 1000);
  for (const int exponent : {-400, -100, 100, 400}) {
    SquaresProblem scaled = problem;
    for (double& value : scaled.gram.second) value = std::ldexp(value, exponent);
    EXPECT_EQ(solve_squares(scaled, 1e-10, 1000).x, expected.x) << "gram by 2^" << exponent;
    scaled = problem;
    for (double& value : scaled.w.values) value = std::ldexp(value, exponent / 2);
    Matrix found = solve_squares(scaled, 1e-10, 1000).x;
    for (double& value : found.values) value = std::ldexp(value, -exponent / 2);
    EXPECT_EQ(found, expected.x) << "weights by 2^" << exponent / 2;
  }
}

TEST(LeastSquares, IsTheSameOnTwoThreads) {
  const ThreadsGuard guard;
  const SquaresProblem problem = draw_problem(100, draw_inputs(150, 96, 64), Pattern(2, 4), 67);
  set_threads(1);
  const Solved one = solve_squares(problem, 1e-6, 100);
  set_threads(2);
  const Solved two = solve_squares(problem, 1e-6, 100);
  EXPECT_EQ(one.x, two.x);
  EXPECT_EQ(one.report.most_steps, two.report.most_steps);
}

TEST(LeastSquares, RefusesWhatDoesNotFit) {
  const Matrix w(2, 4), g(4, 4);
  Matrix x(2, 4);
  EXPECT_TRUE(contains(
      message_of([&] { least_squares(w.view(), g.view(), Mask(2, 5), {}, x.view()); }), "[2, 5]"));
  EXPECT_TRUE(contains(message_of([&] {
                         least_squares(w.view(), g.view(), Mask(2, 4), {1e-3, 0}, x.view());
                       }),
                       "0 steps"));
}

// ─── mean absorption ───

TEST(AbsorbMeans, KeepsTheSumOfEveryGroup) {
  for (const WeightShape shape :
       {WeightShape{5, 16, 1}, WeightShape{5, 18, 1}, {4, 10, 9}, {3, 3, 4}}) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(4, 8)}) {
      SCOPED_TRACE(trace("absorb", shape, pattern, "", 70));
      auto weights = draw_weights<double>(Kind::kGaussian, shape, 70);
      for (int64_t i = 0; i < std::min<int64_t>(4, shape.ins); ++i) {
        weights.at(1, i * shape.taps) = 0;
      }
      const Mask support = find_support(weights.data(), shape, {pattern, false, {}, {}});
      Matrix out(shape.outs, shape.cols());
      std::ranges::fill(out.values, 99.0);
      absorb_means(weights.data(), shape, pattern.group(), support, out.values.data());
      EXPECT_EQ(zero_outside_support(out, support), "");
      for (int64_t r = 0; r < shape.outs; ++r) {
        for (int64_t tap = 0; tap < shape.taps; ++tap) {
          for (int64_t first = 0; first < shape.ins; first += pattern.group()) {
            double was = 0.0, is = 0.0;
            std::set<double> gains;
            int kept = 0;
            for (int64_t i = first; i < std::min(first + pattern.group(), shape.ins); ++i) {
              const int64_t c = i * shape.taps + tap;
              was += weights.at(r, c), is += out.at(r, c), kept += support.at(r, c);
              if (support.at(r, c))
                gains.insert(std::round(1e9 * (out.at(r, c) - weights.at(r, c))));
            }
            if (kept == 0) {
              EXPECT_EQ(is, 0.0);
            }
            if (kept > 0) {
              EXPECT_NEAR(is, was, 1e-12);
            }
            EXPECT_LE(gains.size(), 1u) << "every weight that stays gains the same";
          }
        }
      }
    }
  }
}

// ─── supports ───

// The mask that keeps the largest of every group, by looking at all subsets of a group.
double best_kept(const std::vector<double>& scores, int keep) {
  double best = 0.0;
  for (uint32_t subset = 0; subset < 1u << scores.size(); ++subset) {
    if (std::popcount(subset) > keep) continue;
    double sum = 0.0;
    for (size_t i = 0; i < scores.size(); ++i) sum += (subset >> i & 1) != 0 ? scores[i] : 0.0;
    best = std::max(best, sum);
  }
  return best;
}

TEST(FindSupport, KeepsTheMostOfEveryGroup) {
  for (const WeightShape shape : {WeightShape{6, 24, 1}, WeightShape{3, 11, 4}}) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(4, 8)}) {
      for (const bool wanda : {false, true}) {
        SCOPED_TRACE(trace(wanda ? "wanda" : "magnitude", shape, pattern, "", 80));
        const auto weights = draw_weights<double>(Kind::kGaussian, shape, 80);
        std::vector<double> norms;
        for (int64_t c = 0; c < shape.cols(); ++c) {
          norms.push_back(0.1 + Rng(test_seed(), 81).uniform(static_cast<uint64_t>(c)));
        }
        const auto score = [&](int64_t r, int64_t c) {
          return weights.magnitude(r, c) * (wanda ? norms[static_cast<size_t>(c)] : 1.0);
        };
        SupportOptions options{pattern, false, {}, {}};
        if (wanda) options.col_scale = norms;
        const Mask support = find_support(weights.data(), shape, options);
        for (int64_t r = 0; r < shape.outs; ++r) {
          for (int64_t tap = 0; tap < shape.taps; ++tap) {
            for (int64_t first = 0; first < shape.ins; first += pattern.group()) {
              std::vector<double> scores;
              double found = 0.0;
              for (int64_t i = first; i < std::min(first + pattern.group(), shape.ins); ++i) {
                const int64_t c = i * shape.taps + tap;
                scores.push_back(score(r, c));
                if (support.at(r, c)) found += score(r, c);
              }
              ASSERT_NEAR(found, best_kept(scores, pattern.keep()), 1e-12);
            }
          }
        }
        EXPECT_EQ(count_groups_in(support, shape, pattern).violations, 0);
      }
    }
  }
}

TEST(FindSupport, TransposableTilesWeighRowsByTheirScale) {
  const WeightShape shape{4, 16, 1};
  const Pattern pattern(2, 4);
  const auto weights = draw_weights<double>(Kind::kGaussian, shape, 82);
  const std::vector<double> scale = {-5.0, 0.01, 1.0, 3.0};
  Weights<double> scaled = weights;
  for (int64_t r = 0; r < 4; ++r) {
    for (int64_t c = 0; c < 16; ++c) scaled.at(r, c) *= scale[static_cast<size_t>(r)];
  }
  const Mask plain = find_support(weights.data(), shape, {pattern, true, {}, {}});
  const Mask folded = find_support(weights.data(), shape, {pattern, true, scale, {}});
  EXPECT_NE(plain, folded);
  for (int64_t col = 0; col < 16; col += 4) {
    EXPECT_NEAR(kept_magnitude(weights, plain, 0, col, 4, 4),
                best_of(full_masks(4, 4, 2), weights, col, 4, 4), 1e-12);
    EXPECT_NEAR(kept_magnitude(scaled, folded, 0, col, 4, 4),
                best_of(full_masks(4, 4, 2), scaled, col, 4, 4), 1e-12);
  }
  for (const Mask& mask : {plain, folded}) {
    EXPECT_EQ(count_groups_in(mask, shape, pattern).violations, 0);
    EXPECT_EQ(count_groups_out(mask, shape, pattern).violations, 0);
  }
}

TEST(FindSupport, NeverKeepsAZero) {
  const WeightShape shape{8, 16, 1};
  auto weights = draw_weights<double>(Kind::kIntegers, shape, 83);
  for (const bool transposable : {false, true}) {
    const Mask support = find_support(weights.data(), shape, {Pattern(3, 4), transposable, {}, {}});
    for (int64_t r = 0; r < 8; ++r) {
      for (int64_t c = 0; c < 16; ++c) {
        EXPECT_FALSE(support.at(r, c) && weights.at(r, c) == 0.0) << r << ", " << c;
      }
    }
    EXPECT_GT(support.count(), 0);
  }
}

TEST(FindSupport, IntersectsBitByBit) {
  const WeightShape shape{3, 130, 1};
  const auto a = draw_weights<double>(Kind::kIntegers, shape, 84);
  const auto b = draw_weights<double>(Kind::kIntegers, shape, 85);
  const Mask both = intersection(nonzeros(a.data(), 3, 130), nonzeros(b.data(), 3, 130));
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 130; ++c) {
      EXPECT_EQ(both.at(r, c), a.magnitude(r, c) > 0 && b.magnitude(r, c) > 0);
    }
  }
  EXPECT_TRUE(contains(message_of([] { intersection(Mask(1, 2), Mask(2, 1)); }), "[2, 1]"));
}

// ─── sparsegpt ───

struct PatternCase {
  Pattern pattern;
  bool transposable;

  std::string str() const { return pattern.str() + (transposable ? " transposable" : ""); }
};

const std::vector<PatternCase> kCases = {{{2, 4}, false},    {{4, 8}, false}, {{1, 4}, false},
                                         {{2, 4, 2}, false}, {{2, 4}, true},  {{1, 4, 2}, true}};

// The classic loop of optimal brain surgery: the inverse itself, from which each column that is
// passed is eliminated.
struct Surgery {
  Matrix x;
  Mask support;
};

Mask choose_naively(const Matrix& scores, const PatternCase& pattern) {
  if (pattern.transposable || pattern.pattern.share() > 1) {  // the solvers have tests of their own
    return find_mask(default_solver(pattern.transposable), scores.data(),
                     {scores.rows, scores.cols, 1}, pattern.pattern);
  }
  Mask mask(scores.rows, scores.cols);
  for (int64_t r = 0; r < scores.rows; ++r) {
    for (int64_t c = 0; c < scores.cols; ++c) {
      int larger = 0;
      for (int64_t i = 0; i < scores.cols; ++i) larger += scores.at(r, i) > scores.at(r, c);
      mask.set(r, c, larger < pattern.pattern.keep());
    }
  }
  return mask;
}

Surgery surgery(const Matrix& w, const WeightShape& shape, const Matrix& g,
                const PatternCase& pattern, const std::vector<double>& row_scale, double damping) {
  const int64_t n = shape.cols();
  std::vector<int64_t> order;  // tap by tap
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    for (int64_t in = 0; in < shape.ins; ++in) order.push_back(in * shape.taps + tap);
  }
  const auto at = [&](int64_t k) { return order[static_cast<size_t>(k)]; };
  double mean = 0.0;
  for (int64_t c = 0; c < n; ++c) mean += g.at(c, c) / static_cast<double>(n);
  Matrix h(n, n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) h.at(i, j) = g.at(at(i), at(j)) + (i == j) * damping * mean;
  }
  std::vector<Matrix> inverses = {inverse_naive(h)};  // before column k, the first k eliminated
  for (int64_t k = 0; k + 1 < n; ++k) {
    Matrix next = inverses.back();
    const Matrix& old = inverses.back();
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        next.at(i, j) -= old.at(i, k) * old.at(k, j) / old.at(k, k);
      }
    }
    inverses.push_back(std::move(next));
  }
  const int64_t slab =
      pattern.transposable ? pattern.pattern.block() : int64_t{pattern.pattern.group()};
  Surgery result{w, Mask(w.rows, n)};
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    for (int64_t in = 0; in < shape.ins; in += slab) {
      const int64_t first = tap * shape.ins + in, width = std::min(slab, shape.ins - in);
      Matrix scores(w.rows, width);
      for (int64_t r = 0; r < w.rows; ++r) {
        for (int64_t k = 0; k < width; ++k) {
          const double value = w.at(r, at(first + k)) == 0.0 ? 0.0 : result.x.at(r, at(first + k));
          const double lost = value * (row_scale.empty() ? 1.0 : row_scale[static_cast<size_t>(r)]);
          scores.at(r, k) =
              lost * lost / inverses[static_cast<size_t>(first + k)].at(first + k, first + k);
        }
      }
      const Mask chosen = choose_naively(scores, pattern);
      for (int64_t k = first; k < first + width; ++k) {
        const Matrix& inverse = inverses[static_cast<size_t>(k)];
        for (int64_t r = 0; r < w.rows; ++r) {
          if (chosen.at(r, k - first) && w.at(r, at(k)) != 0.0) {
            result.support.set(r, at(k), true);
            continue;
          }
          const double error = result.x.at(r, at(k)) / inverse.at(k, k);
          for (int64_t j = k; j < n; ++j) result.x.at(r, at(j)) -= error * inverse.at(k, j);
          result.x.at(r, at(k)) = 0.0;
        }
      }
    }
  }
  return result;
}

TEST(SparseGpt, IsBrainSurgeryColumnByColumn) {
  for (const PatternCase& pattern : kCases) {
    for (const WeightShape shape : {WeightShape{8, 24, 1}, WeightShape{9, 22, 1}, {8, 10, 3}}) {
      SCOPED_TRACE(trace(pattern.str(), shape, pattern.pattern, "", 90));
      Matrix w = draw_matrix(Kind::kGaussian, shape.outs, shape.cols(), 90);
      for (size_t i = 0; i < w.values.size(); i += 5) w.values[i] = 0.0;
      const Gram gram = naive_gram(draw_inputs(100, shape.cols(), 91));
      std::vector<double> scale;
      for (int64_t r = 0; r < shape.outs; ++r) scale.push_back(r % 2 == 0 ? 1.0 : -0.3);
      for (const bool scaled : {false, true}) {
        SparseGptOptions options{pattern.pattern, pattern.transposable, {}, 0.01};
        if (scaled) options.row_scale = scale;
        Matrix x(shape.outs, shape.cols());
        const Mask support = sparsegpt(w.data(), shape, gram.view(), options, x.values.data());
        const Surgery expected = surgery(w, shape, {shape.cols(), shape.cols(), gram.second},
                                         pattern, scaled ? scale : std::vector<double>(), 0.01);
        EXPECT_EQ(support, expected.support);
        EXPECT_LT(farthest(x, expected.x), 1e-9);
        EXPECT_EQ(zero_outside_support(x, support), "");
        EXPECT_EQ(intersection(support, nonzeros(w.data(), w.rows, w.cols)), support)
            << "zeros stay zero";
        EXPECT_EQ(count_groups_in(support, shape, pattern.pattern).violations, 0);
        if (pattern.transposable) {
          EXPECT_EQ(count_groups_out(support, shape, pattern.pattern).violations, 0);
        }
      }
    }
  }
}

TEST(SparseGpt, GoesOnBeyondOneBlockOfColumns) {
  const WeightShape shape{4, 150, 1};
  const Matrix w = draw_matrix(Kind::kGaussian, 4, 150, 94);
  const Gram gram = naive_gram(draw_inputs(200, 150, 95));
  Matrix x(4, 150);
  const Mask support = sparsegpt(w.data(), shape, gram.view(), {}, x.values.data());
  const Surgery expected = surgery(w, shape, {150, 150, gram.second}, {{2, 4}, false}, {}, 0.01);
  EXPECT_EQ(support, expected.support);
  EXPECT_LT(farthest(x, expected.x), 1e-9);
}

TEST(SparseGpt, TakesDeadInputsAndRefusesWhatIsNotPositiveDefinite) {
  const WeightShape shape{4, 8, 2};
  const Matrix w = draw_matrix(Kind::kGaussian, 4, 16, 98);
  Gram gram = naive_gram(draw_inputs(50, 16, 99));
  for (int64_t c = 0; c < 16; ++c) {
    gram.second[static_cast<size_t>(16 * 3 + c)] = gram.second[static_cast<size_t>(16 * c + 3)] = 0;
  }
  Matrix x(4, 16);
  for (const double damping : {0.01, 0.0}) {
    const SparseGptOptions options{Pattern(2, 4), false, {}, damping};
    const Mask support = sparsegpt(w.data(), shape, gram.view(), options, x.values.data());
    EXPECT_EQ(support.count(), 32);
    for (const double value : x.values) EXPECT_TRUE(std::isfinite(value));
  }
  // Columns 4 and 6 contradict each other; the factor is taken from behind, and ends at the first.
  Gram impossible = gram;
  for (int64_t c = 0; c < 16; ++c) {
    for (int64_t r = 0; r < 16; ++r) impossible.second[static_cast<size_t>(16 * r + c)] = r == c;
  }
  impossible.second[16 * 4 + 6] = impossible.second[16 * 6 + 4] = 2.0;
  const std::string message = message_of([&] {
    sparsegpt(w.data(), shape, impossible.view(), {Pattern(2, 4), false, {}, 0.0}, x.values.data());
  });
  EXPECT_TRUE(contains(message, "not positive definite at column 4")) << message;
  EXPECT_TRUE(contains(message, "damping")) << message;
  EXPECT_TRUE(contains(message_of([&] {
                         sparsegpt(w.data(), {4, 7, 2}, impossible.view(), {}, x.values.data());
                       }),
                       "14 columns"));
}

// ─── whole layers ───

struct LayerCase {
  WeightShape shape;
  Matrix w;
  Matrix x;  // samples
  Gram gram;
};

LayerCase draw_layer(const WeightShape& shape, uint64_t stream, int64_t samples = 150) {
  Matrix x = draw_inputs(samples, shape.cols(), stream + 1);
  const Gram gram = naive_gram(x);
  return {shape, draw_matrix(Kind::kGaussian, shape.outs, shape.cols(), stream), std::move(x),
          gram};
}

const std::vector<WeightShape> kShapes = {{16, 32, 1}, {8, 8, 9}, {10, 30, 1}};

LayerProblem problem_of(const LayerCase& layer, std::string_view method, const PatternCase& pattern,
                        std::string_view support = "") {
  LayerProblem problem;
  problem.weights = layer.w.data();
  problem.shape = layer.shape;
  problem.pattern = pattern.pattern;
  problem.transposable = pattern.transposable;
  problem.method = method_of(method, support);
  problem.inputs = &layer.gram;
  return problem;
}

// ‖W'X + change − WX‖² / ‖WX‖² over the samples themselves.
double measured_error(const LayerCase& layer, const Matrix& weights,
                      const std::vector<double>& change = {}) {
  const Matrix before = naive_product(layer.w, turned(layer.x));
  const Matrix after = naive_product(weights, turned(layer.x));
  double off = 0.0, all = 0.0;
  for (int64_t r = 0; r < before.rows; ++r) {
    const double moved = change.empty() ? 0.0 : change[static_cast<size_t>(r)];
    for (int64_t s = 0; s < before.cols; ++s) {
      off += std::pow(after.at(r, s) + moved - before.at(r, s), 2);
      all += std::pow(before.at(r, s), 2);
    }
  }
  return off / all;
}

Matrix weights_of(const LayerCase& layer, const ConvertedLayer& converted) {
  return {layer.shape.outs, layer.shape.cols(), converted.weights};
}

void expect_obeys(const LayerCase& layer, const PatternCase& pattern,
                  const ConvertedLayer& converted) {
  const Matrix x = weights_of(layer, converted);
  EXPECT_EQ(zero_outside_support(x, converted.support), "");
  const Mask nonzero = nonzeros(x.data(), x.rows, x.cols);
  EXPECT_EQ(count_groups_in(nonzero, layer.shape, pattern.pattern).violations, 0);
  if (pattern.transposable) {
    EXPECT_EQ(count_groups_out(nonzero, layer.shape, pattern.pattern).violations, 0);
  }
}

class EveryMethod : public ::testing::TestWithParam<size_t> {
 protected:
  std::string_view name() const { return methods()[GetParam()].name; }
};
INSTANTIATE_TEST_SUITE_P(Table, EveryMethod, ::testing::Range(size_t{0}, methods().size()),
                         [](const auto& info) { return std::string(methods()[info.param].name); });

TEST_P(EveryMethod, ObeysThePatternAndReportsTheErrorThatInputsShow) {
  for (const PatternCase& pattern : kCases) {
    for (const WeightShape& shape : kShapes) {
      SCOPED_TRACE(trace(name(), shape, pattern.pattern, pattern.str(), 110));
      const LayerCase layer = draw_layer(shape, 110);
      const ConvertedLayer converted = convert_layer(problem_of(layer, name(), pattern));
      expect_obeys(layer, pattern, converted);
      EXPECT_GT(converted.support.count(), 0);
      ASSERT_TRUE(converted.error_before && converted.error_after);
      const double before = measured_error(layer, masked(layer.w, converted.support));
      const double after = measured_error(layer, weights_of(layer, converted));
      EXPECT_NEAR(*converted.error_before, before, 1e-9 * before);
      EXPECT_NEAR(*converted.error_after, after, 1e-9 * after);
      EXPECT_TRUE(converted.bias_change.empty());
      const bool solves = name() == "adaprune";
      EXPECT_EQ(converted.solver.has_value(), solves);
      if (solves) {
        EXPECT_LE(*converted.error_after, *converted.error_before);
      }
    }
  }
}

TEST_P(EveryMethod, IsTheSameOnTwoThreads) {
  const ThreadsGuard guard;
  for (const WeightShape& shape : kShapes) {
    const LayerCase layer = draw_layer(shape, 120);
    LayerProblem problem = problem_of(layer, name(), kCases[0]);
    problem.free_bias = name() == "adaprune";
    set_threads(1);
    const ConvertedLayer one = convert_layer(problem);
    set_threads(2);
    const ConvertedLayer two = convert_layer(problem);
    EXPECT_EQ(one.weights, two.weights);
    EXPECT_EQ(one.support, two.support);
    EXPECT_EQ(one.bias_change, two.bias_change);
    EXPECT_EQ(one.error_after, two.error_after);
  }
}

TEST_P(EveryMethod, WeightsAreWhatTheFileCanHoldAndTheErrorIsTheirs) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
    SCOPED_TRACE(fmt::format("{} {}, seed {}", name(), dtype_name(dtype), test_seed()));
    LayerCase layer = draw_layer({16, 32, 1}, 130);
    std::vector<std::byte> bytes(layer.w.values.size() * static_cast<size_t>(dtype_bits(dtype)) /
                                 8);
    const auto rounded = [&](const std::vector<double>& values) {
      round_weights(values, dtype, bytes);
      return with_weights(dtype, bytes,
                          [](auto held) { return std::vector<double>(held.begin(), held.end()); });
    };
    layer.w.values = rounded(layer.w.values);
    LayerProblem problem = problem_of(layer, name(), kCases[0]);
    problem.dtype = dtype;
    const ConvertedLayer converted = convert_layer(problem);
    EXPECT_EQ(converted.weights, rounded(converted.weights));
    const double after = measured_error(layer, weights_of(layer, converted));
    EXPECT_NEAR(*converted.error_after, after, (dtype == Dtype::kF32 ? 1e-6 : 1e-9) * after);
    expect_obeys(layer, kCases[0], converted);
  }
}

TEST_P(EveryMethod, WithoutInputsItRunsOnlyIfItNeedsNone) {
  const LayerCase layer = draw_layer({16, 32, 1}, 140);
  LayerProblem problem = problem_of(layer, name(), kCases[0]);
  problem.inputs = nullptr;
  if (problem.method.needs_inputs()) {
    EXPECT_TRUE(contains(message_of([&] { convert_layer(problem); }), "must know the inputs"));
    return;
  }
  const ConvertedLayer converted = convert_layer(problem);
  EXPECT_EQ(converted.error_before, std::nullopt);
  EXPECT_EQ(converted.error_after, std::nullopt);
  EXPECT_EQ(converted.weights, convert_layer(problem_of(layer, name(), kCases[0])).weights);
}

TEST_P(EveryMethod, RefusesWeightsThatAreNotFinite) {
  for (const double value :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(), 1e300}) {
    LayerCase layer = draw_layer({16, 32, 1}, 141);
    layer.w.at(3, 7) = value;
    try {
      convert_layer(problem_of(layer, name(), kCases[0]));
      ADD_FAILURE() << "no error at " << value;
    } catch (const UnusableWeightError& error) {
      EXPECT_EQ(error.weight().row, 3);
      EXPECT_EQ(error.weight().col, 7);
    }
  }
}

TEST_P(EveryMethod, ZerosStayZeroAndASparseLayerStaysAsItIs) {
  LayerCase layer = draw_layer({16, 32, 1}, 142);
  layer.w = weights_of(layer, convert_layer(problem_of(layer, "magnitude", kCases[0])));
  for (size_t i = 0; i < layer.w.values.size(); i += 16) layer.w.values[i] = 0.0;
  const ConvertedLayer converted = convert_layer(problem_of(layer, name(), kCases[0]));
  EXPECT_EQ(converted.weights, layer.w.values);
  EXPECT_EQ(converted.error_after, 0.0);
}

TEST_P(EveryMethod, SamplesThatAreTooFewAreCounted) {
  const Method method = method_of(name());
  const bool solves = name() == "adaprune" || name() == "sparsegpt";
  EXPECT_EQ(samples_needed(method, {3, 32, 1}, Pattern(2, 4)), solves ? 16 : 1);
  EXPECT_EQ(samples_needed(method, {3, 30, 9}, Pattern(2, 4)), solves ? 9 * 16 : 1);
  EXPECT_EQ(samples_needed(method, {3, 29, 1}, Pattern(2, 4)), solves ? 15 : 1);
  EXPECT_EQ(samples_needed(method, {3, 3, 1}, Pattern(4, 8)), solves ? 3 : 1);
  const LayerCase few = draw_layer({16, 32, 1}, 143, 15), enough = draw_layer({16, 32, 1}, 143, 16);
  convert_layer(problem_of(enough, name(), kCases[0]));
  if (!solves) return;
  const std::string message =
      message_of([&] { convert_layer(problem_of(few, name(), kCases[0])); });
  EXPECT_TRUE(contains(message, "15 samples")) << message;
  EXPECT_TRUE(contains(message, "needs 16")) << message;
}

TEST(ConvertLayer, AdapruneIsTheBestOnItsSupport) {
  for (const PatternCase& pattern : kCases) {
    for (const WeightShape& shape : kShapes) {
      SCOPED_TRACE(trace("adaprune", shape, pattern.pattern, pattern.str(), 150));
      const LayerCase layer = draw_layer(shape, 150);
      const auto error = [&](std::string_view method, std::string_view support = "") {
        LayerProblem problem = problem_of(layer, method, pattern, support);
        problem.least_squares = {1e-12, 5000};
        return *convert_layer(problem).error_after;
      };
      EXPECT_LT(error("adaprune"), error("magnitude"));
      EXPECT_LT(error("adaprune"), error("absorption"));
      EXPECT_LT(error("adaprune", "wanda"), error("wanda"));
      EXPECT_LT(error("adaprune", "wanda"), error("absorption", "wanda"));
      EXPECT_LT(error("adaprune", "sparsegpt"), error("sparsegpt"));
      const ConvertedLayer own = convert_layer(problem_of(layer, "sparsegpt", pattern));
      const ConvertedLayer better =
          convert_layer(problem_of(layer, "adaprune", pattern, "sparsegpt"));
      EXPECT_EQ(own.support, better.support);
      EXPECT_EQ(own.error_before, better.error_before);
      const Matrix exact = exact_squares({layer.w, layer.gram, own.support});
      EXPECT_NEAR(error("adaprune", "sparsegpt"), measured_error(layer, exact), 1e-8);
    }
  }
}

// However few steps are allowed: the best of what is at hand stays.
TEST(ConvertLayer, AdapruneIsNeverWorseThanItsStarts) {
  for (const Dtype dtype : {Dtype::kF64, Dtype::kF32, Dtype::kBf16}) {
    for (const double noise : {0.7, 1e-3, 100.0}) {  // 100: nothing to gain
      LayerCase layer = draw_layer({12, 24, 1}, 154);
      layer.x = draw_inputs(500, 24, 155, noise);
      layer.gram = naive_gram(layer.x);
      for (double& value : layer.w.values)
        value =
            std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(value)) & 0xffff0000u);
      for (const std::string support : {"magnitude", "wanda", "sparsegpt"}) {
        SCOPED_TRACE(fmt::format("{} {} noise {}", support, dtype_name(dtype), noise));
        LayerProblem problem = problem_of(layer, "adaprune", kCases[0], support);
        problem.dtype = dtype;
        problem.least_squares = {1e-3, 1};
        const ConvertedLayer converted = convert_layer(problem);
        EXPECT_LE(*converted.error_after, *converted.error_before);
        if (dtype != Dtype::kF64) continue;
        const std::string peer = support == "sparsegpt" ? "sparsegpt" : "absorption";
        EXPECT_LE(
            *converted.error_after,
            *convert_layer(problem_of(layer, peer, kCases[0], peer == "sparsegpt" ? "" : support))
                 .error_after);
      }
    }
  }
}

// Inputs that are alike within a group are what absorption is right for.
TEST(ConvertLayer, AdapruneBeginsWithAbsorptionWhereThatIsBest) {
  LayerCase layer = draw_layer({12, 24, 1}, 156);
  const Matrix own = draw_matrix(Kind::kGaussian, 100, 24, 157);
  const Matrix shared = draw_matrix(Kind::kGaussian, 100, 6, 158);
  for (int64_t s = 0; s < 100; ++s) {
    for (int64_t c = 0; c < 24; ++c) {
      layer.x.at(s, c) =
          (1.0 + static_cast<double>(c / 4)) * shared.at(s, c / 4) + 0.01 * own.at(s, c);
    }
  }
  layer.x = {100, 24, {layer.x.values.begin(), layer.x.values.begin() + 2400}};
  layer.gram = naive_gram(layer.x);
  LayerProblem problem = problem_of(layer, "adaprune", kCases[0]);
  problem.least_squares = {1e-3, 1};
  EXPECT_LE(*convert_layer(problem).error_after,
            *convert_layer(problem_of(layer, "absorption", kCases[0])).error_after);
}

TEST(ConvertLayer, AFreeBiasTakesTheChangeOfTheMean) {
  for (const WeightShape& shape : kShapes) {
    for (const std::string support : {"magnitude", "wanda", "sparsegpt"}) {
      SCOPED_TRACE(trace(support, shape, Pattern(2, 4), "", 160));
      const LayerCase layer = draw_layer(shape, 160);
      LayerProblem problem = problem_of(layer, "adaprune", kCases[0], support);
      problem.least_squares = {1e-12, 5000};
      const double fixed = *convert_layer(problem).error_after;
      problem.free_bias = true;
      const ConvertedLayer converted = convert_layer(problem);
      const Matrix x = weights_of(layer, converted);
      ASSERT_EQ(converted.bias_change.size(), static_cast<size_t>(shape.outs));
      for (int64_t r = 0; r < shape.outs; ++r) {
        double expected = 0.0;
        for (int64_t c = 0; c < shape.cols(); ++c) {
          expected += (layer.w.at(r, c) - x.at(r, c)) * layer.gram.mean[static_cast<size_t>(c)];
        }
        EXPECT_NEAR(converted.bias_change[static_cast<size_t>(r)], expected, 1e-12);
      }
      const double before = measured_error(layer, masked(layer.w, converted.support));
      const double after = measured_error(layer, x, converted.bias_change);
      EXPECT_NEAR(*converted.error_before, before, 1e-9 * before);
      EXPECT_NEAR(*converted.error_after, after, 1e-9 * after);
      if (support != "sparsegpt") {
        EXPECT_LT(*converted.error_after, fixed);
      }
      EXPECT_LT(after, measured_error(layer, x)) << "the bias where it was";
    }
  }
}

TEST(ConvertLayer, AFreeBiasNeedsTheMean) {
  LayerCase layer = draw_layer({8, 16, 1}, 161);
  layer.gram.mean.clear();
  LayerProblem problem = problem_of(layer, "adaprune", kCases[0]);
  convert_layer(problem);
  problem.free_bias = true;
  EXPECT_TRUE(contains(message_of([&] { convert_layer(problem); }), "mean"));
}

TEST(ConvertLayer, RefusesInputsOfAnotherLayerAndWeightsTooLargeForTheirType) {
  LayerCase layer = draw_layer({8, 16, 1}, 162);
  const LayerCase other = draw_layer({8, 12, 1}, 163);
  LayerProblem problem = problem_of(layer, "magnitude", kCases[0]);
  problem.inputs = &other.gram;
  const std::string message = message_of([&] { convert_layer(problem); });
  EXPECT_TRUE(contains(message, "12 columns for weights of 16")) << message;
  for (double& weight : layer.w.values) weight = 65504;  // all of a group in half of it
  problem = problem_of(layer, "absorption", kCases[0]);
  problem.dtype = Dtype::kF16;
  EXPECT_TRUE(contains(message_of([&] { convert_layer(problem); }), "too large for F16"));
}

TEST(Methods, AreFoundByNameAndWithASupport) {
  for (const Method& method : methods()) {
    EXPECT_EQ(method_of(method.name).name, method.name);
    const bool chooses = method.name == "adaprune" || method.name == "absorption";
    for (const std::string support : {"magnitude", "wanda", "sparsegpt"}) {
      const std::string message = message_of([&] { method_of(method.name, support); });
      const bool goes = chooses && (method.name == "adaprune" || support != "sparsegpt");
      EXPECT_EQ(message == "(no Error)", goes) << method.name << " " << support << ": " << message;
    }
  }
  EXPECT_TRUE(method_of("absorption", "wanda").needs_inputs());
  EXPECT_FALSE(method_of("absorption").needs_inputs());
  EXPECT_TRUE(contains(message_of([] { method_of("obd"); }), "magnitude, wanda, absorption"));
  EXPECT_TRUE(contains(message_of([] { method_of("adaprune", "random"); }), "sparsegpt"));
}

// ─── patterns by themselves ───

TEST(AutoPattern, TheChanceToFitIsThatOfAllSubsets) {
  for (const int group : {1, 4, 8}) {
    for (const double zeros : {0.0, 0.1, 0.5, 0.65, 0.9, 1.0}) {
      for (int keep = 0; keep <= group; ++keep) {
        double expected = 0.0;
        for (uint32_t nonzero = 0; nonzero < 1u << group; ++nonzero) {
          const int count = std::popcount(nonzero);
          if (count > keep) continue;
          expected += std::pow(1 - zeros, count) * std::pow(zeros, group - count);
        }
        EXPECT_NEAR(chance_to_fit(group, keep, zeros), expected, 1e-12)
            << keep << ":" << group << " at " << zeros;
      }
    }
  }
  EXPECT_NEAR(chance_to_fit(64, 40, 0.5), 0.983617, 1e-6);
  EXPECT_TRUE(contains(message_of([] { chance_to_fit(4, 5, 0.5); }), "5 of 4"));
  EXPECT_TRUE(contains(message_of([] { chance_to_fit(4, 2, 1.5); }), "1.5"));
}

TEST(AutoPattern, KeepIsTheLeastThatFitsOftenEnough) {
  EXPECT_EQ(keep_for_zeros(8, 0.0, 0.95), 8);
  EXPECT_EQ(keep_for_zeros(8, 1.0, 0.95), 1);
  EXPECT_EQ(keep_for_zeros(4, 0.5, 0.5), 2);     // 11 of 16 have at most 2
  EXPECT_EQ(keep_for_zeros(4, 0.5, 0.6875), 3);  // not more than 11 of 16
  EXPECT_EQ(keep_for_zeros(8, 0.65, 0.95), 5);   // 97.5%; at most 4: 89.4%
  for (const double confidence : {0.0, 0.5, 0.95, 0.999}) {
    for (const int group : {2, 4, 8, 16, 64}) {
      int before = group;
      for (double zeros = 0.0; zeros <= 1.0; zeros += 0.05) {
        const int keep = keep_for_zeros(group, zeros, confidence);
        EXPECT_LE(keep, before) << "more zeros never need more";
        EXPECT_GE(keep, 1);
        EXPECT_LE(keep, keep_for_zeros(group, zeros, 0.9999));
        if (keep < group) {
          EXPECT_GT(chance_to_fit(group, keep, zeros), confidence);
        }
        if (keep > 1) {
          EXPECT_LE(chance_to_fit(group, keep - 1, zeros), confidence);
        }
        before = keep;
      }
    }
  }
  EXPECT_TRUE(contains(message_of([] { keep_for_zeros(8, 0.5, 1.0); }), "confidence of 1"));
}

// Errors that fall with keep, by less and less; or any that fall.
std::vector<KeepCosts> draw_costs(size_t layers, int group, bool convex, uint64_t stream) {
  std::vector<KeepCosts> costs;
  const Rng rng(test_seed(), stream);
  for (uint64_t i = 0; i < layers; ++i) {
    std::vector<double> falls;
    for (int k = 0; k + 1 < group; ++k) {
      falls.push_back(rng.uniform(100 * i + static_cast<uint64_t>(k)));
    }
    if (convex) std::ranges::sort(falls);
    KeepCosts one{{}, {0.0}};
    for (const double fall : falls) one.errors.push_back(one.errors.back() + fall);
    std::ranges::reverse(one.errors);
    // Every third layer has short groups only: from some keep on all of it stays.
    const auto rows = static_cast<int64_t>(1 + rng.below(100 * i + 99, 50));
    const int64_t tail = i % 3 == 2 ? group / 2 : 0;
    for (int64_t keep = 1; keep <= group; ++keep) {
      one.kept.push_back(rows * (tail > 0 ? std::min(keep, tail) : keep));
      if (tail > 0 && keep >= tail) one.errors[static_cast<size_t>(keep - 1)] = 0.0;
    }
    costs.push_back(one);
  }
  return costs;
}

double weights_kept(const std::vector<KeepCosts>& costs, const std::vector<int>& keeps) {
  double kept = 0.0;
  for (size_t i = 0; i < costs.size(); ++i) {
    kept += static_cast<double>(costs[i].kept[static_cast<size_t>(keeps[i] - 1)]);
  }
  return kept;
}

double total_error(const std::vector<KeepCosts>& costs, const std::vector<int>& keeps) {
  double sum = 0.0;
  for (size_t i = 0; i < costs.size(); ++i)
    sum += costs[i].errors[static_cast<size_t>(keeps[i] - 1)];
  return sum;
}

// The least error of all choices that keep at most so many.
double least_error(const std::vector<KeepCosts>& costs, double most) {
  double least = std::numeric_limits<double>::infinity();
  std::vector<int> keeps(costs.size(), 1);
  while (true) {
    if (weights_kept(costs, keeps) <= most * (1 + 1e-12)) {
      least = std::min(least, total_error(costs, keeps));
    }
    size_t i = 0;
    while (i < keeps.size() && keeps[i] == static_cast<int>(costs[i].errors.size())) keeps[i++] = 1;
    if (i == keeps.size()) return least;
    ++keeps[i];
  }
}

TEST(AutoPattern, ABudgetIsKeptAndSpentAsWellAsCanBe) {
  for (uint64_t stream = 200; stream < 230; ++stream) {
    const bool convex = stream % 2 == 0;
    const int group = stream % 3 == 0 ? 4 : 8;
    const std::vector<KeepCosts> costs = draw_costs(4, group, convex, stream);
    double all = 0.0;
    for (const KeepCosts& one : costs) all += static_cast<double>(one.kept.back());
    for (const double density : {0.01, 0.2, 0.3, 0.5, 0.77, 0.95, 1.0}) {
      SCOPED_TRACE(fmt::format("density {}, seed {} stream {}", density, test_seed(), stream));
      const std::vector<int> keeps = keeps_for_density(costs, density);
      const double kept = weights_kept(costs, keeps);
      const bool least = std::ranges::all_of(keeps, [](int keep) { return keep == 1; });
      EXPECT_TRUE(kept <= density * all * (1 + 1e-12) || least);
      // What is kept is spent so well that nothing that keeps as many or fewer does better.
      EXPECT_LE(total_error(costs, keeps), least_error(costs, kept) + 1e-12);
      if (density == 1.0) {
        EXPECT_EQ(keeps, std::vector<int>(costs.size(), group));
      }
    }
  }
  EXPECT_TRUE(contains(message_of([] { keeps_for_density({}, 0.0); }), "density of 0"));
  EXPECT_TRUE(contains(message_of([] { keeps_for_density({}, 1.5); }), "density of 1.5"));
}

// ─── the normalisation behind a layer ───

TEST(NormBehind, IsFoundUnderTheNamesThatPeopleUse) {
  const test::ScratchFolder folder;
  std::vector<test::NamedTensor> tensors;
  const auto add_norm = [&](const std::string& name, int64_t size, bool gamma = true) {
    const auto values = test::gaussian(size);
    tensors.push_back({name + ".running_mean", Dtype::kF32, {size}, values});
    tensors.push_back({name + ".running_var", Dtype::kF32, {size}, values});
    if (gamma) tensors.push_back({name + ".weight", Dtype::kF32, {size}, values});
  };
  for (const std::string name :
       {"layer1.0.bn1", "layer1.0.downsample.1", "norm", "blocks.2.shortcut_norm", "a.shortcut_bn",
        "a.norm2", "conv_norm"}) {
    add_norm(name, 8);
  }
  add_norm("b.bn1", 6);
  add_norm("c.norm1", 6), add_norm("c.bn1", 8, false);
  tensors.push_back({"d.bn1.running_mean", Dtype::kF32, {8}, test::gaussian(8)});
  tensors.push_back({"d.bn1.weight", Dtype::kF32, {8}, test::gaussian(8)});
  test::write_file(folder / "f", tensors);
  const Checkpoint checkpoint = Checkpoint::open(folder / "f");
  const auto found = [&](const std::string& layer) {
    const std::optional<NormBehind> norm = norm_behind(checkpoint, layer, 8);
    return norm ? norm->name : "";
  };
  EXPECT_EQ(found("layer1.0.conv1"), "layer1.0.bn1");
  EXPECT_EQ(found("layer1.0.downsample.0"), "layer1.0.downsample.1");
  EXPECT_EQ(found("stem"), "norm");
  EXPECT_EQ(found("blocks.2.shortcut"), "blocks.2.shortcut_norm");
  EXPECT_EQ(found("a.shortcut"), "a.shortcut_bn");
  EXPECT_EQ(found("a.conv2"), "a.norm2");
  EXPECT_EQ(found("conv"), "norm");
  EXPECT_EQ(found("layer1.0.conv2"), "");
  EXPECT_EQ(found("layer1.0.downsample.1"), "");
  EXPECT_EQ(found("fc"), "");
  EXPECT_EQ(found("b.conv1"), "") << "of another size";
  EXPECT_EQ(found("c.conv1"), "c.bn1") << "norm1 is of another size";
  EXPECT_EQ(found("d.conv1"), "") << "no variance";
  EXPECT_TRUE(norm_behind(checkpoint, "a.conv2", 8)->gamma.has_value());
  EXPECT_FALSE(norm_behind(checkpoint, "c.conv1", 8)->gamma.has_value());
  EXPECT_EQ(norm_behind(checkpoint, "a.conv2", 8)->mean.info.name, "a.norm2.running_mean");
  EXPECT_EQ(norm_behind(checkpoint, "a.conv2", 8)->variance.info.name, "a.norm2.running_var");
  EXPECT_EQ(norm_behind(checkpoint, "a.conv2", 8)->gamma->info.name, "a.norm2.weight");
}

struct Statistics {
  std::vector<double> mean, variance;
};

Statistics statistics_of(const Matrix& w, const Matrix& x) {
  const Matrix y = naive_product(w, turned(x));
  Statistics found;
  for (int64_t r = 0; r < y.rows; ++r) {
    double mean = 0.0, second = 0.0;
    for (int64_t s = 0; s < y.cols; ++s) {
      mean += y.at(r, s) / static_cast<double>(y.cols);
      second += y.at(r, s) * y.at(r, s) / static_cast<double>(y.cols);
    }
    found.mean.push_back(mean);
    found.variance.push_back(second - mean * mean);
  }
  return found;
}

TEST(NormBehind, IsBelievedIfItsStatisticsAreThoseOfTheLayer) {
  const LayerCase layer = draw_layer({16, 32, 1}, 170);
  const Matrix elsewhere = draw_inputs(400, 32, 171);  // other samples of the same inputs
  const auto believed = [&](const Statistics& statistics) {
    return normalises(statistics.mean, statistics.variance, layer.w.values, layer.gram);
  };
  const Statistics own = statistics_of(layer.w, layer.x);
  EXPECT_TRUE(believed(own));
  EXPECT_TRUE(believed(statistics_of(layer.w, elsewhere)));
  // Of another layer, with inputs as they are behind an activation: all positive.
  Matrix positive = draw_inputs(400, 32, 175);
  for (double& value : positive.values) value = std::abs(value) + 1.0;
  EXPECT_FALSE(believed(statistics_of(draw_matrix(Kind::kGaussian, 16, 32, 178), positive)));
  // Of what goes in: the normalisation before the layer.
  Matrix unit(16, 32);
  for (int64_t i = 0; i < 16; ++i) unit.at(i, i) = 1.0;
  EXPECT_FALSE(believed(statistics_of(unit, layer.x)));
  EXPECT_FALSE(believed({std::vector<double>(16, 0.0), std::vector<double>(16, 1.0)}));
  Statistics off = own;
  for (double& variance : off.variance) variance *= 4;
  EXPECT_FALSE(believed(off));
  off = own;
  for (size_t r = 0; r < 16; ++r) off.mean[r] += std::sqrt(own.variance[r]);
  EXPECT_FALSE(believed(off));
  EXPECT_FALSE(believed({std::vector<double>(16, 0.0), std::vector<double>(16, 0.0)}));
}

}  // namespace
}  // namespace weft
