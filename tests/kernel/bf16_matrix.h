// What tests of bf16 products share: matrices between guards, and the comparator, which has its own test
// in bf16_rows_test.cpp. Sums are fp32 and rounded once, so integers compare exactly, however large
// their sum.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/products.h"
#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"
#include "weft/core/parallel.h"

namespace weft::test {

struct ThreadsAsBefore {
  int before = threads();
  ~ThreadsAsBefore() { set_threads(before); }
};

// As TestMatrix: guards around and between the rows, NaN, and watched by a sanitizer.
class Bf16Matrix {
 public:
  static constexpr Bf16 kGuard{0x7fa5};
  static constexpr int64_t kMargin = 64;

  const int64_t rows, cols, stride;

  Bf16Matrix(int64_t rows, int64_t cols, int64_t gap = 0)
      : rows(rows),
        cols(cols),
        stride(cols + gap),
        size_(2 * kMargin + rows * stride),
        all_(new Bf16[static_cast<size_t>(size_)]) {
    std::fill_n(all_.get(), size_, kGuard);
    if (__asan_poison_memory_region == nullptr) return;
    __asan_poison_memory_region(all_.get(), bytes());
    for (int64_t r = 0; r < rows && cols > 0; ++r) {
      __asan_unpoison_memory_region(data() + r * stride, static_cast<size_t>(cols) * sizeof(Bf16));
    }
  }
  // The nearest numbers.
  explicit Bf16Matrix(const TestMatrix& m) : Bf16Matrix(m.rows, m.cols, m.stride - m.cols) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) view().at(r, c) = to_bf16(m.at(r, c));
    }
  }
  Bf16Matrix(Bf16Matrix&&) = default;
  ~Bf16Matrix() {
    if (all_ && __asan_unpoison_memory_region != nullptr) {
      __asan_unpoison_memory_region(all_.get(), bytes());
    }
  }

  Bf16* data() { return all_.get() + kMargin; }
  const Bf16* data() const { return all_.get() + kMargin; }
  MatrixView<Bf16> view() { return {data(), rows, cols, stride}; }
  MatrixView<const Bf16> view() const { return {data(), rows, cols, stride}; }
  float at(int64_t r, int64_t c) const { return to_float(view().at(r, c)); }

  std::vector<uint16_t> bits() const {
    std::vector<uint16_t> bits;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) bits.push_back(view().at(r, c).bits);
    }
    return bits;
  }
  bool damaged() const {
    if (__asan_poison_memory_region != nullptr) return false;  // who touched one was stopped
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t at = i - kMargin;
      const bool inside = at >= 0 && at < rows * stride && at % stride < cols;
      if (!inside && all_[static_cast<size_t>(i)] != kGuard) return true;
    }
    return false;
  }

 private:
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(Bf16); }

  int64_t size_;
  std::unique_ptr<Bf16[]> all_;
};

// Nothing, or the first element that is not the fp32 sum rounded once: of integers the nearest bf16
// of their sum, of floats one within the bound of the sum and half a unit, 2^-8, of it.
inline std::string bf16_mismatch(const Bf16Matrix& got, const ExpectedMatrix& want, Data data) {
  if (got.rows != want.rows || got.cols != want.cols) return "another size";
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t c = 0; c < got.cols; ++c) {
      const Expected& e = want.at(r, c);
      const double a = got.at(r, c), b = e.value;
      const double nearest = to_float(to_bf16(static_cast<float>(b)));
      if (a == nearest || (std::isnan(a) && std::isnan(b))) continue;
      const double bound = e.bound() + 0x1p-8 * (std::abs(b) + e.bound());
      if (data == Data::kFloats && std::isfinite(b) && std::abs(a - b) <= bound) continue;
      return fmt::format("[{}, {}]: got {}, expected {}, rounded {}, bound {:.3g}, seed {}", r, c,
                         a, b, nearest, bound, test_seed());
    }
  }
  return "";
}

inline void round_values(TestMatrix& m) {
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t c = 0; c < m.cols; ++c) m.at(r, c) = to_float(to_bf16(m.at(r, c)));
  }
}

}  // namespace weft::test
