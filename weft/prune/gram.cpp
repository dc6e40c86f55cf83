#include "weft/prune/gram.h"

#include <algorithm>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/prune/double_product.h"

namespace weft {

Gram Gram::centered() const {
  WEFT_CHECK(static_cast<int64_t>(mean.size()) == cols, "the mean of {} inputs is not known", cols);
  Gram result = *this;
  parallel_for(cols, [&](int64_t r) {
    double* row = result.second.data() + r * cols;
    const double factor = mean[static_cast<size_t>(r)];
    for (int64_t c = 0; c < cols; ++c) row[c] -= factor * mean[static_cast<size_t>(c)];
  });
  return result;
}

GramBuilder::GramBuilder(int64_t cols) {
  WEFT_CHECK(cols >= 1 && cols <= int64_t{1} << 20, "a Gram matrix of {} columns", cols);
  sums_.cols = cols;
  sums_.second.assign(static_cast<size_t>(cols * cols), 0.0);
  sums_.mean.assign(static_cast<size_t>(cols), 0.0);
  chunk_.resize(static_cast<size_t>(kChunk * cols));
  transposed_.resize(chunk_.size());
}

template <typename T>
void GramBuilder::add_chunks(MatrixView<const T> samples) {
  WEFT_CHECK(samples.cols == sums_.cols, "samples of {} values for a Gram matrix of {}",
             samples.cols, sums_.cols);
  for (int64_t r = 0; r < samples.rows; ++r) {
    std::copy_n(samples.row(r), samples.cols, chunk_.data() + filled_ * sums_.cols);
    if (++filled_ == kChunk) flush();
  }
}

void GramBuilder::add(MatrixView<const float> samples) { add_chunks(samples); }
void GramBuilder::add(MatrixView<const double> samples) { add_chunks(samples); }

// The blocks on and above the diagonal; finish() mirrors them.
void GramBuilder::flush() {
  const int64_t cols = sums_.cols;
  parallel_for(cols, [&](int64_t c) {
    double* to = transposed_.data() + c * filled_;
    double sum = 0.0;
    for (int64_t r = 0; r < filled_; ++r) sum += to[r] = chunk_[static_cast<size_t>(r * cols + c)];
    sums_.mean[static_cast<size_t>(c)] += sum;
  });
  const MatrixView<const double> rows(transposed_.data(), cols, filled_);
  const MatrixView<const double> right(chunk_.data(), filled_, cols);
  const MatrixView<double> second(sums_.second.data(), cols, cols);
  constexpr int64_t kStrip = 384;
  for (int64_t r = 0; r < cols; r += kStrip) {
    const int64_t count = std::min(kStrip, cols - r);
    add_product(1.0, rows.rows_from(r, count), right.cols_from(r, cols - r),
                second.rows_from(r, count).cols_from(r, cols - r));
  }
  sums_.samples += filled_;
  filled_ = 0;
}

Gram GramBuilder::finish() {
  flush();
  WEFT_CHECK(sums_.samples > 0, "no samples");
  const double scale = 1.0 / static_cast<double>(sums_.samples);
  const int64_t cols = sums_.cols;
  for (int64_t r = 0; r < cols; ++r) {
    for (int64_t c = r; c < cols; ++c) {
      double& above = sums_.second[static_cast<size_t>(r * cols + c)];
      above *= scale;
      sums_.second[static_cast<size_t>(c * cols + r)] = above;
    }
    sums_.mean[static_cast<size_t>(r)] *= scale;
  }
  return std::move(sums_);
}

std::vector<double> row_energies(MatrixView<const double> d, MatrixView<const double> g) {
  constexpr int64_t kPanel = 384;
  std::vector<double> energies(static_cast<size_t>(d.rows));
  std::vector<double> product;
  for (int64_t r = 0; r < d.rows; r += kPanel) {
    const MatrixView<const double> panel = d.rows_from(r, std::min(kPanel, d.rows - r));
    product.assign(static_cast<size_t>(panel.rows * g.cols), 0.0);
    const MatrixView<double> result(product.data(), panel.rows, g.cols);
    add_product(1.0, panel, g, result);
    parallel_for(panel.rows, [&](int64_t i) {
      energies[static_cast<size_t>(r + i)] =
          std::inner_product(panel.row(i), panel.row(i) + panel.cols, result.row(i), 0.0);
    });
  }
  return energies;
}

}  // namespace weft
