// Matrices and inputs for tests of weft/prune, and naive answers to compare with.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/weights.h"
#include "weft/core/matrix_view.h"
#include "weft/prune/gram.h"

namespace weft {

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

inline Matrix draw_matrix(Kind kind, int64_t rows, int64_t cols, uint64_t stream) {
  return {rows, cols, draw_weights<double>(kind, {rows, cols}, stream).values};
}

inline Matrix naive_product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t k = 0; k < a.cols; ++k) {
      for (int64_t i = 0; i < b.cols; ++i) c.at(r, i) += a.at(r, k) * b.at(k, i);
    }
  }
  return c;
}

inline Matrix turned(const Matrix& a) {
  Matrix b(a.cols, a.rows);
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) b.at(c, r) = a.at(r, c);
  }
  return b;
}

// The largest entry of the difference; NaN if there is one.
inline double farthest(const Matrix& a, const Matrix& b) {
  EXPECT_TRUE(a.rows == b.rows && a.cols == b.cols);
  double most = 0.0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double off = std::abs(a.values[i] - b.values[i]);
    if (!(off <= most)) most = off;
  }
  return most;
}

// Samples as layers see them: not centred, and correlated. noise: what no other column has.
inline Matrix draw_inputs(int64_t samples, int64_t cols, uint64_t stream, double noise = 0.7) {
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

inline Gram naive_gram(const Matrix& x) {
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
inline std::vector<double> solve_naive(Matrix a, std::vector<double> b) {
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

inline std::string zero_outside_support(const Matrix& x, const Mask& support) {
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.cols; ++c) {
      if (!support.at(r, c) && x.at(r, c) != 0.0) {
        return fmt::format("[{}, {}] is {} outside the support", r, c, x.at(r, c));
      }
    }
  }
  return "";
}

inline Matrix masked(const Matrix& w, const Mask& support) {
  Matrix x = w;
  for (int64_t r = 0; r < w.rows; ++r) {
    for (int64_t c = 0; c < w.cols; ++c) {
      if (!support.at(r, c)) x.at(r, c) = 0.0;
    }
  }
  return x;
}

struct SquaresProblem {
  Matrix w;
  Gram gram;
  Mask support;
};

// Row by row, G_SS x_S = (w G)_S.
inline Matrix exact_squares(const SquaresProblem& problem) {
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

}  // namespace weft
