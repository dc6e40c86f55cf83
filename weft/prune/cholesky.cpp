#include "weft/prune/cholesky.h"

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/prune/double_product.h"

namespace weft {
namespace {

constexpr int64_t kBlock = 96;

std::optional<int64_t> factor_block(MatrixView<double> a) {
  for (int64_t j = 0; j < a.rows; ++j) {
    double pivot = a.at(j, j);
    for (int64_t k = 0; k < j; ++k) pivot -= a.at(j, k) * a.at(j, k);
    if (!(pivot > 0) || !std::isfinite(pivot)) return j;
    a.at(j, j) = std::sqrt(pivot);
    for (int64_t i = j + 1; i < a.rows; ++i) {
      double sum = a.at(i, j);
      for (int64_t k = 0; k < j; ++k) sum -= a.at(i, k) * a.at(j, k);
      a.at(i, j) = sum / a.at(j, j);
    }
  }
  return std::nullopt;
}

// rows ← rows · l⁻ᵀ, each row on its own.
void solve_rows(MatrixView<const double> l, MatrixView<double> rows) {
  parallel_for(rows.rows, [&](int64_t r) {
    double* row = rows.row(r);
    for (int64_t j = 0; j < l.rows; ++j) {
      double sum = row[j];
      for (int64_t k = 0; k < j; ++k) sum -= row[k] * l.at(j, k);
      row[j] = sum / l.at(j, j);
    }
  });
}

std::vector<double> transposed(MatrixView<const double> a) {
  std::vector<double> to(static_cast<size_t>(a.rows * a.cols));
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) to[static_cast<size_t>(c * a.rows + r)] = a.at(r, c);
  }
  return to;
}

// The lower triangle of a, less panel · panelᵀ: in strips, so that little above it is computed.
void subtract_outer(MatrixView<const double> panel, MatrixView<double> a) {
  const std::vector<double> panel_transposed = transposed(panel);
  const MatrixView<const double> right(panel_transposed.data(), panel.cols, panel.rows);
  constexpr int64_t kStrip = 4 * kBlock;
  for (int64_t r = 0; r < a.rows; r += kStrip) {
    const int64_t rows = std::min(kStrip, a.rows - r), cols = r + rows;
    add_product(-1.0, panel.rows_from(r, rows), right.cols_from(0, cols),
                a.rows_from(r, rows).cols_from(0, cols));
  }
}

}  // namespace

std::optional<int64_t> cholesky(MatrixView<double> a) {
  WEFT_CHECK(a.rows == a.cols, "a factor of a matrix of {} x {}", a.rows, a.cols);
  for (int64_t j = 0; j < a.rows; j += kBlock) {
    const int64_t width = std::min(kBlock, a.rows - j), below = a.rows - j - width;
    const MatrixView<double> diagonal = a.rows_from(j, width).cols_from(j, width);
    if (const auto bad = factor_block(diagonal)) return j + *bad;
    const MatrixView<double> panel = a.rows_from(j + width, below).cols_from(j, width);
    solve_rows(diagonal, panel);
    subtract_outer(panel, a.rows_from(j + width, below).cols_from(j + width, below));
  }
  for (int64_t r = 0; r < a.rows; ++r) std::fill(a.row(r) + r + 1, a.row(r) + a.cols, 0.0);
  return std::nullopt;
}

// Block row by block row: with l = [l₁ 0; p d], the inverse is [l₁⁻¹ 0; −d⁻¹ p l₁⁻¹, d⁻¹].
void invert_lower(MatrixView<double> l) {
  WEFT_CHECK(l.rows == l.cols, "an inverse of a matrix of {} x {}", l.rows, l.cols);
  for (int64_t j = 0; j < l.rows; j += kBlock) {
    const int64_t height = std::min(kBlock, l.rows - j);
    const MatrixView<double> diagonal = l.rows_from(j, height).cols_from(j, height);
    const MatrixView<double> left = l.rows_from(j, height).cols_from(0, j);
    std::vector<double> product(static_cast<size_t>(height * j), 0.0);
    const MatrixView<double> solved(product.data(), height, j);
    add_product(-1.0, left, l.rows_from(0, j).cols_from(0, j), solved);
    // d y = product, column by column of it; then d itself, by columns of the unit matrix.
    for (int64_t r = 0; r < height; ++r) {
      for (int64_t k = 0; k < r; ++k) {
        const double factor = diagonal.at(r, k);
        for (int64_t c = 0; c < j; ++c) solved.at(r, c) -= factor * solved.at(k, c);
      }
      for (int64_t c = 0; c < j; ++c) solved.at(r, c) /= diagonal.at(r, r);
    }
    for (int64_t r = 0; r < height; ++r) std::copy_n(solved.row(r), j, left.row(r));
    for (int64_t c = 0; c < height; ++c) {
      diagonal.at(c, c) = 1.0 / diagonal.at(c, c);
      for (int64_t r = c + 1; r < height; ++r) {
        double sum = 0.0;
        for (int64_t k = c; k < r; ++k) sum -= diagonal.at(r, k) * diagonal.at(k, c);
        diagonal.at(r, c) = sum / diagonal.at(r, r);
      }
    }
  }
}

}  // namespace weft
