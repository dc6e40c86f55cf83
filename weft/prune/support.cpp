#include "weft/prune/support.h"

#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"

namespace weft {

Mask nonzeros(const double* weights, int64_t rows, int64_t cols) {
  Mask mask(rows, cols);
  parallel_for(rows, [&](int64_t r) {
    for (int64_t c = 0; c < cols; ++c) {
      if (weights[r * cols + c] != 0.0) mask.set(r, c, true);
    }
  });
  return mask;
}

Mask intersection(const Mask& a, const Mask& b) {
  WEFT_CHECK(a.rows() == b.rows() && a.cols() == b.cols(), "masks of [{}, {}] and [{}, {}]",
             a.rows(), a.cols(), b.rows(), b.cols());
  Mask result = a;
  const int64_t words = (a.cols() + 63) / 64;
  for (int64_t r = 0; r < a.rows(); ++r) {
    for (int64_t i = 0; i < words; ++i) result.row_words(r)[i] &= b.row_words(r)[i];
  }
  return result;
}

bool obeys(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern,
           bool transposable) {
  return count_groups_in(nonzero, shape, pattern).violations == 0 &&
         (!transposable || count_groups_out(nonzero, shape, pattern).violations == 0);
}

Mask find_support(const double* weights, const WeightShape& shape, const SupportOptions& options) {
  const int64_t rows = shape.outs, cols = shape.cols();
  const auto fits = [](std::span<const double> scale, int64_t size) {
    return scale.empty() || static_cast<int64_t>(scale.size()) == size;
  };
  WEFT_CHECK(fits(options.row_scale, rows) && fits(options.col_scale, cols),
             "{} and {} scales for weights of {} x {}", options.row_scale.size(),
             options.col_scale.size(), rows, cols);
  Mask nonzero = nonzeros(weights, rows, cols);
  if (obeys(nonzero, shape, options.pattern, options.transposable)) return nonzero;
  std::vector<double> scores(static_cast<size_t>(rows * cols));
  parallel_for(rows, [&](int64_t r) {
    const double of_row =
        options.row_scale.empty() ? 1.0 : std::abs(options.row_scale[static_cast<size_t>(r)]);
    for (int64_t c = 0; c < cols; ++c) {
      const double of_col =
          options.col_scale.empty() ? 1.0 : options.col_scale[static_cast<size_t>(c)];
      scores[static_cast<size_t>(r * cols + c)] = std::abs(weights[r * cols + c]) * of_row * of_col;
    }
  });
  const Mask best =
      find_mask(default_solver(options.transposable), scores.data(), shape, options.pattern);
  return intersection(best, nonzero);
}

}  // namespace weft
