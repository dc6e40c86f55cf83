// Gram: what a layer sees, in as much as least squares need it.
//
//   second = mean of x xᵀ over samples    [cols, cols]     mean = mean of x    [cols]
//
// A column is a weight of an output: an input, or, of a convolution, an input channel at a tap, in
// the order of its weights ([ins, taps]). For a difference D of weights, with the bias left as it
// is or moved to where the outputs have the mean they had,
//
//   mean ‖D x‖² = tr(D second Dᵀ)       mean ‖D x − D mean‖² = tr(D (second − mean meanᵀ) Dᵀ)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "weft/core/matrix_view.h"

namespace weft {

struct Gram {
  int64_t cols = 0;
  std::vector<double> second;  // [cols, cols], symmetric
  std::vector<double> mean;    // [cols]; empty: not known
  int64_t samples = 0;         // 0: not known

  MatrixView<const double> view() const { return {second.data(), cols, cols}; }
  double diagonal(int64_t c) const { return second[static_cast<size_t>(c * cols + c)]; }

  // second − mean meanᵀ. Throws Error if the mean is not known.
  Gram centered() const;
};

// Takes samples as they come, any number at a time; sums are in double. Memory: one Gram and two
// copies of kChunk samples.
class GramBuilder {
 public:
  static constexpr int64_t kChunk = 512;

  explicit GramBuilder(int64_t cols);

  // Memory that one of these takes.
  static int64_t bytes_for(int64_t cols) {
    return static_cast<int64_t>(sizeof(double)) * cols * (cols + 2 * kChunk);
  }

  void add(MatrixView<const float> samples);  // [n, cols]
  void add(MatrixView<const double> samples);
  // Throws Error if there were no samples.
  Gram finish();

 private:
  template <typename T>
  void add_chunks(MatrixView<const T> samples);
  void flush();

  Gram sums_;
  int64_t filled_ = 0;
  std::vector<double> chunk_;       // [kChunk, cols]
  std::vector<double> transposed_;  // [cols, kChunk]
};

// Σ D ∘ (D g), in double: tr(D g Dᵀ). d: [rows, cols]. One value per row, so that a sum of them
// does not depend on threads.
std::vector<double> row_energies(MatrixView<const double> d, MatrixView<const double> g);

}  // namespace weft
