// Least squares on a support against the solution of the normal equations.
#include "weft/prune/least_squares.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/prune/matrices.h"
#include "weft/prune/support.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

SquaresProblem draw_problem(int64_t rows, const Matrix& x, const Pattern& pattern,
                            uint64_t stream) {
  const Matrix w = draw_matrix(Kind::kGaussian, rows, x.cols, stream);
  return {w, naive_gram(x), find_support(w.data(), {rows, x.cols, 1}, {pattern, false, {}, {}})};
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

// The tolerance is a share of what all steps gain. Here that is nearly the error of the start, which
// with little noise is a million times the error of the solution.
TEST(LeastSquares, ReachesTheErrorOfTheSolutionAlsoWhereThatIsHardToFind) {
  constexpr double kTolerance = 1e-14;
  for (const double noise : {0.1, 0.01, 0.001}) {
    const SquaresProblem problem =
        draw_problem(5, draw_inputs(200, 32, 34, noise), Pattern(2, 4), 37);
    const Solved solved = solve_squares(problem, kTolerance, 20'000);
    const std::vector<double> start = errors_of(problem, masked(problem.w, problem.support));
    const std::vector<double> best = errors_of(problem, exact_squares(problem));
    const std::vector<double> found = errors_of(problem, solved.x);
    EXPECT_EQ(solved.report.unfinished_rows, 0) << noise;
    for (size_t r = 0; r < best.size(); ++r) {
      EXPECT_NEAR(found[r], best[r], 30 * kTolerance * start[r])
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

}  // namespace
}  // namespace weft
