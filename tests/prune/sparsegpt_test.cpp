// SparseGPT against the classic loop of optimal brain surgery.
#include "weft/prune/sparsegpt.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/prune/layer_cases.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"
#include "weft/prune/support.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

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

}  // namespace
}  // namespace weft
