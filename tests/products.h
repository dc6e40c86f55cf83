// Matrices to multiply, and one judge of the results.
//
// A TestMatrix owns rows that lie further apart than they are long; what lies between is canary,
// and a product that writes there is found out.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/support.h"
#include "weft/core/matrix_view.h"
#include "weft/core/rng.h"

namespace weft::test {

inline constexpr float kCanary = 12345.678f;

struct TestMatrix {
  int64_t rows, cols, stride;
  std::vector<float> values;  // rows * stride, and as much canary as a row before and behind

  TestMatrix(int64_t rows, int64_t cols, int64_t gap = 0)
      : rows(rows),
        cols(cols),
        stride(cols + gap),
        values(static_cast<size_t>((rows + 2) * (stride + 1)), kCanary) {}

  float* data() { return values.data() + stride; }
  const float* data() const { return values.data() + stride; }
  float& at(int64_t r, int64_t c) { return data()[r * stride + c]; }
  float at(int64_t r, int64_t c) const { return data()[r * stride + c]; }
  MatrixView<float> view() { return {data(), rows, cols, stride}; }
  MatrixView<const float> view() const { return {data(), rows, cols, stride}; }

  TestMatrix& fill(float value) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) at(r, c) = value;
    }
    return *this;
  }
  // -4 ... 4: products and sums of up to a million of them are exact.
  TestMatrix& fill_integers(uint64_t stream) {
    const Rng rng(test_seed(), stream);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        at(r, c) = static_cast<float>(rng.below(static_cast<uint64_t>(r * cols + c), 9)) - 4;
      }
    }
    return *this;
  }
  // In [-1, 1).
  TestMatrix& fill_uniform(uint64_t stream) {
    const Rng rng(test_seed(), stream);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        at(r, c) = static_cast<float>(2 * rng.uniform(static_cast<uint64_t>(r * cols + c)) - 1);
      }
    }
    return *this;
  }

  bool canary_lives() const {
    for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
      const int64_t cell = i - stride;
      const bool inside = stride > 0 && cell >= 0 && cell < rows * stride && cell % stride < cols;
      if (!inside && values[static_cast<size_t>(i)] != kCanary) return false;
    }
    return true;
  }
};

// What a result should be, and how far a sum of `terms` products in fp32, in any order and with or
// without fused multiply-add, may be from it: terms·2^-24 / (1 - terms·2^-24) times the sum of the
// magnitudes (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
struct Expected {
  double value = 0;
  double magnitude = 0;
  int64_t terms = 0;

  void add(double term) {
    value += term;
    magnitude += std::abs(term);
    ++terms;
  }
  double bound() const {
    const double u = static_cast<double>(terms) * 0x1p-24;
    return u / (1 - u) * magnitude;
  }
};

// expected(r, c) is an Expected. The whole matrix is judged; the worst entry is printed.
template <typename F>
::testing::AssertionResult is_near(const TestMatrix& result, F expected, bool exactly = false) {
  double worst = 0;
  int64_t row = -1, col = -1;
  for (int64_t r = 0; r < result.rows; ++r) {
    for (int64_t c = 0; c < result.cols; ++c) {
      const Expected e = expected(r, c);
      const double error = std::abs(static_cast<double>(result.at(r, c)) - e.value);
      const double allowed = exactly ? 0 : e.bound();
      // NaN is never near; an exact zero is near itself
      const double badness = error == 0 ? 0 : error <= allowed ? error / allowed : 2 + error;
      if (!(badness <= worst)) {
        worst = std::isnan(badness) ? std::numeric_limits<double>::infinity() : badness;
        row = r;
        col = c;
      }
    }
  }
  if (!result.canary_lives()) {
    return ::testing::AssertionFailure() << "wrote outside of the result";
  }
  if (worst <= 1) return ::testing::AssertionSuccess();
  const Expected e = expected(row, col);
  return ::testing::AssertionFailure()
         << "worst at [" << row << ", " << col << "]: " << result.at(row, col) << ", expected "
         << e.value << " within " << (exactly ? 0 : e.bound()) << ", seed " << test_seed();
}

inline bool same_bits(const TestMatrix& a, const TestMatrix& b) {
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) {
      if (std::bit_cast<uint32_t>(a.at(r, c)) != std::bit_cast<uint32_t>(b.at(r, c))) return false;
    }
  }
  return a.rows == b.rows && a.cols == b.cols;
}

}  // namespace weft::test
