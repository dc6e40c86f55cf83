#include "weft/prune/sparsegpt.h"

#include <algorithm>
#include <cmath>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/mask/solver.h"
#include "weft/prune/cholesky.h"
#include "weft/prune/double_product.h"

namespace weft {
namespace {

constexpr int64_t kBandRows = 64;

// U with H⁻¹ = Uᵀ U. With rows and columns in reverse order, H = L Lᵀ; reversed again, L is an
// upper triangular R with H = R Rᵀ, and U = R⁻¹. order: the columns of the layer, for messages.
std::vector<double> inverse_factor(MatrixView<const double> h, const std::vector<int64_t>& order) {
  const int64_t n = h.rows;
  std::vector<double> reversed(static_cast<size_t>(n * n));
  const auto reverse = [n](MatrixView<const double> from, double* to) {
    parallel_for(n, [&](int64_t r) {
      for (int64_t c = 0; c < n; ++c) to[r * n + c] = from.row(n - 1 - r)[n - 1 - c];
    });
  };
  reverse(h, reversed.data());
  const MatrixView<double> l(reversed.data(), n, n);
  const auto bad = cholesky(l);
  WEFT_CHECK(!bad, "the Gram matrix is not positive definite at column {}: more damping may help",
             order[static_cast<size_t>(n - 1 - *bad)]);
  invert_lower(l);
  std::vector<double> factor(reversed.size());
  reverse(l, factor.data());
  return factor;
}

class ColumnPruner {
 public:
  ColumnPruner(const double* weights, const WeightShape& shape, MatrixView<const double> g,
               const SparseGptOptions& options)
      : shape_(shape), options_(options), rows_(shape.outs), cols_(shape.cols()) {
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      for (int64_t in = 0; in < shape.ins; ++in) order_.push_back(in * shape.taps + tap);
    }
    factor_ = damped_factor(g);
    current_.resize(static_cast<size_t>(rows_ * cols_));
    parallel_for(rows_, [&](int64_t r) {
      for (int64_t k = 0; k < cols_; ++k) {
        current_[static_cast<size_t>(r * cols_ + k)] = weights[r * cols_ + original(k)];
      }
    });
    allowed_ = nonzeros(current_.data(), rows_, cols_);
    kept_ = Mask(rows_, cols_);
  }

  Mask prune(double* out) {
    for (int64_t tap = 0; tap < shape_.taps; ++tap) {
      for (int64_t in = 0; in < shape_.ins; in += block_width()) {
        prune_block(tap * shape_.ins + in, std::min(block_width(), shape_.ins - in));
      }
    }
    Mask support(rows_, cols_);
    parallel_for(rows_, [&](int64_t r) {
      for (int64_t k = 0; k < cols_; ++k) {
        out[r * cols_ + original(k)] = current_[static_cast<size_t>(r * cols_ + k)];
        if (kept_.at(r, k)) support.set(r, original(k), true);
      }
    });
    return support;
  }

 private:
  int64_t original(int64_t k) const { return order_[static_cast<size_t>(k)]; }

  // Columns that get their mask together.
  int64_t slab_width() const {
    return options_.transposable ? options_.pattern.block() : options_.pattern.group();
  }
  // Columns after which those to the right are brought up to date, in one product: whole slabs,
  // about 128 as in the paper.
  int64_t block_width() const { return std::max<int64_t>(1, 128 / slab_width()) * slab_width(); }

  std::vector<double> damped_factor(MatrixView<const double> g) const {
    double trace = 0.0;
    for (int64_t c = 0; c < cols_; ++c) trace += g.at(c, c);
    const double mean = trace > 0 ? trace / static_cast<double>(cols_) : 1.0;
    std::vector<double> h(static_cast<size_t>(cols_ * cols_));
    parallel_for(cols_, [&](int64_t r) {
      double* row = h.data() + r * cols_;
      for (int64_t c = 0; c < cols_; ++c) row[c] = g.row(original(r))[original(c)];
      row[r] += options_.damping * mean;
      if (!(row[r] > 0)) row[r] = mean;  // an input that no sample has
    });
    return inverse_factor({h.data(), cols_, cols_}, order_);
  }

  // Rows are independent but for what shares a mask, so bands of them go through the block each on
  // their own; then the columns to the right of it make up for all of it, in one product.
  void prune_block(int64_t first, int64_t width) {
    errors_.assign(static_cast<size_t>(rows_ * width), 0.0);
    const int64_t band = ceil_div(kBandRows, options_.pattern.block()) * options_.pattern.block();
    parallel_for(ceil_div(rows_, band), [&](int64_t i) {
      const int64_t row = i * band, rows = std::min(band, rows_ - row);
      for (int64_t k = 0; k < width; k += slab_width()) {
        const int64_t slab = std::min(slab_width(), width - k);
        choose_slab(row, rows, first + k, slab);
        for (int64_t r = row; r < row + rows; ++r) prune_row(r, first + k, slab, first, width);
      }
    });
    const int64_t right = first + width;
    add_product(-1.0, {errors_.data(), rows_, width},
                factor().rows_from(first, width).cols_from(right, cols_ - right),
                MatrixView<double>(current_.data(), rows_, cols_).cols_from(right, cols_ - right));
  }

  void choose_slab(int64_t row, int64_t rows, int64_t first, int64_t width) {
    std::vector<double> scores;
    for (int64_t r = row; r < row + rows; ++r) {
      const double scale =
          options_.row_scale.empty() ? 1.0 : options_.row_scale[static_cast<size_t>(r)];
      for (int64_t c = first; c < first + width; ++c) {
        const double w = allowed_.at(r, c) ? current_[static_cast<size_t>(r * cols_ + c)] : 0.0;
        const double lost = scale * w / factor().at(c, c);
        scores.push_back(lost * lost);
      }
    }
    const Mask best = find_mask(default_solver(options_.transposable), scores.data(),
                                {rows, width, 1}, options_.pattern);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t k = 0; k < width; ++k) {
        if (best.at(r, k) && allowed_.at(row + r, first + k)) kept_.set(row + r, first + k, true);
      }
    }
  }

  // Columns [first, first + width) of a row; their errors act within the block.
  void prune_row(int64_t r, int64_t first, int64_t width, int64_t block_first,
                 int64_t block_width) {
    double* row = current_.data() + r * cols_;
    for (int64_t c = first; c < first + width; ++c) {
      if (kept_.at(r, c)) continue;
      const double* u = factor().row(c);
      const double error = row[c] / u[c];
      for (int64_t j = c; j < block_first + block_width; ++j) row[j] -= error * u[j];
      row[c] = 0.0;
      errors_[static_cast<size_t>(r * block_width + c - block_first)] = error;
    }
  }

  MatrixView<const double> factor() const { return {factor_.data(), cols_, cols_}; }

  WeightShape shape_;
  SparseGptOptions options_;
  int64_t rows_, cols_;
  std::vector<int64_t> order_;  // the column that comes k-th: tap by tap
  std::vector<double> factor_;  // U
  std::vector<double> current_;
  std::vector<double> errors_;  // of the block at hand
  Mask allowed_, kept_;         // in that order
};

}  // namespace

Mask sparsegpt(const double* weights, const WeightShape& shape, MatrixView<const double> g,
               const SparseGptOptions& options, double* out) {
  WEFT_CHECK(g.rows == shape.cols() && g.cols == shape.cols(),
             "a Gram matrix of [{}, {}] for weights of {} columns", g.rows, g.cols, shape.cols());
  return ColumnPruner(weights, shape, g, options).prune(out);
}

}  // namespace weft
