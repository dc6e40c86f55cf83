// What tests of products share: matrices between guards, masks of every pattern, and the one
// comparator. They have their own tests, in kernel_test.cpp.
//
// Everything drawn is a function of (WEFT_TEST_SEED, stream), and traces print both.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/weights.h"
#include "weft/core/bf16.h"
#include "weft/core/isa.h"
#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"
#include "weft/kernel/kernels.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/pack/pack.h"

// There when the address sanitizer is; null otherwise.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void*, size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, size_t);
__attribute__((weak)) int __asan_address_is_poisoned(const volatile void*);
}

namespace weft::test {

inline const std::vector<Pattern> kProductPatterns = {
    {1, 2},  {2, 4}, {1, 4},    {2, 8},    {4, 8},    {1, 16},    {5, 7},
    {3, 64}, {4, 4}, {2, 4, 2}, {1, 4, 4}, {2, 4, 8}, {2, 4, 16}, {1, 2, 32}};

// Of the instruction set in use: panels that offsets of 16 bits reach, whole lines, whole groups.
inline void expect_sound_tiles() {
  for (const Pattern& pattern : kProductPatterns) {
    SCOPED_TRACE(pattern.str() + ", " + current_isa());
    const PackTile tile = tile_for(pattern);
    EXPECT_EQ(tile.depth % pattern.group(), 0);
    EXPECT_GE(tile.depth, 1);
    EXPECT_EQ(tile.width % 16, 0);
    EXPECT_LE(tile.depth * tile.width * 4, 1 << 16);
  }
  // The loop takes four entries at a time; the wide rows of AVX-512 may leave no depth for it.
  if (!current_isa().starts_with("avx3")) {
    EXPECT_EQ(tile_for(Pattern(1, 16)).depth % 64, 0);
  }
}

// ---- drawing

// splitmix64: tests draw millions of numbers, and Rng takes fifty times as long.
class Dice {
 public:
  explicit Dice(uint64_t stream) : state_(test_seed() * 0x9e3779b97f4a7c15 + stream) {
    next();
    state_ ^= stream << 32;
  }
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) {
    return static_cast<int64_t>((next() >> 32) * static_cast<uint64_t>(bound) >> 32);
  }
  bool coin() { return below(2) == 1; }

 private:
  uint64_t state_;
};

enum class Data {
  kIntegers,  // -4 ... 4: every sum is exact
  kFloats,    // -1 ... 1, times 2^-4 ... 2^3
};

inline float draw(Data data, Dice& dice) {
  if (data == Data::kIntegers) return static_cast<float>(dice.below(9) - 4);
  const auto scale = static_cast<float>(int64_t{1} << dice.below(8));
  return (static_cast<float>(dice.below(1 << 24)) * 0x1p-23f - 1.0f) * scale * 0x1p-4f;
}

// ---- operands

// A matrix whose rows lie `gap` elements apart, with guards before, between and behind them. Guards
// are NaN: who reads one and uses it, shows it. Who writes one is found by damage(). Under the
// address sanitizer whoever touches one is stopped, to 8 bytes: rows that do not begin on such a
// boundary have part of the guard before them unwatched. `shift` moves the matrix by as many
// elements.
class TestMatrix {
 public:
  static constexpr uint32_t kGuard = 0x7fc57a6b;
  static constexpr int64_t kMargin = 64;

  const int64_t rows, cols, stride;

  TestMatrix(int64_t rows, int64_t cols, int64_t gap = 0, int64_t shift = 0)
      : rows(rows),
        cols(cols),
        stride(cols + gap),
        begin_(kMargin + shift),
        size_(begin_ + rows * stride + kMargin),
        all_(new float[static_cast<size_t>(size_)]) {
    std::fill_n(all_.get(), size_, std::bit_cast<float>(kGuard));
    watch();
  }
  TestMatrix(TestMatrix&&) = default;
  TestMatrix(const TestMatrix& other)
      : TestMatrix(other.rows, other.cols, other.stride - other.cols, other.begin_ - kMargin) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) at(r, c) = other.at(r, c);
    }
  }
  ~TestMatrix() {
    if (all_) unwatch();
  }

  float* data() { return all_.get() + begin_; }
  const float* data() const { return all_.get() + begin_; }
  MatrixView<float> view() { return {data(), rows, cols, stride}; }
  MatrixView<const float> view() const { return {data(), rows, cols, stride}; }
  float& at(int64_t r, int64_t c) { return data()[r * stride + c]; }
  float at(int64_t r, int64_t c) const { return data()[r * stride + c]; }

  void fill(float value) {
    for (int64_t r = 0; r < rows; ++r) std::fill_n(&at(r, 0), cols, value);
  }
  void fill(Data data, Dice& dice) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) at(r, c) = draw(data, dice);
    }
  }

  std::vector<uint32_t> bits() const {
    std::vector<uint32_t> bits;
    bits.reserve(static_cast<size_t>(rows * cols));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) bits.push_back(std::bit_cast<uint32_t>(at(r, c)));
    }
    return bits;
  }

  // The first guard that was written, or nothing.
  std::string damage() const {
    unwatch();
    const std::string found = written_guard();
    watch();
    return found;
  }

  // As a wrong kernel would: counted from the first element.
  void write_guard(int64_t at, float value) {
    unwatch();
    data()[at] = value;
    watch();
  }

  // Whether a sanitizer watches the guards; element `at` counted from the first of the matrix.
  bool watched(int64_t at) const {
    return __asan_address_is_poisoned != nullptr && __asan_address_is_poisoned(data() + at) != 0;
  }

 private:
  std::string written_guard() const {
    for (int64_t i = 0; i < size_; ++i) {
      const int64_t at = i - begin_;
      const bool inside = at >= 0 && at < rows * stride && at % stride < cols;
      if (!inside && std::bit_cast<uint32_t>(all_[static_cast<size_t>(i)]) != kGuard) {
        return fmt::format("the guard at {} from the first element is {}", at,
                           all_[static_cast<size_t>(i)]);
      }
    }
    return "";
  }

  void watch() const {
    if (__asan_poison_memory_region == nullptr) return;
    __asan_poison_memory_region(all_.get(), static_cast<size_t>(size_) * sizeof(float));
    for (int64_t r = 0; r < rows && cols > 0; ++r) {
      __asan_unpoison_memory_region(data() + r * stride, static_cast<size_t>(cols) * sizeof(float));
    }
  }
  void unwatch() const {
    if (__asan_unpoison_memory_region == nullptr) return;
    __asan_unpoison_memory_region(all_.get(), static_cast<size_t>(size_) * sizeof(float));
  }

  int64_t begin_, size_;
  std::unique_ptr<float[]> all_;
};

inline bool same_bits(const TestMatrix& a, const TestMatrix& b) {
  return a.rows == b.rows && a.cols == b.cols && a.bits() == b.bits();
}

// A matrix and what is kept of it. What is not kept is NaN: no packer may take it.
struct Sparse {
  TestMatrix weights;
  Mask mask;

  struct Entry {
    int64_t row;
    int64_t col;
    double value;
  };

  // What a product sees; bf16 rounds.
  std::vector<Entry> entries(Precision type) const {
    std::vector<Entry> kept;
    for (int64_t r = 0; r < mask.rows(); ++r) {
      for (int64_t c = 0; c < mask.cols(); ++c) {
        if (!mask.at(r, c)) continue;
        const float w = weights.at(r, c);
        kept.push_back({r, c, type == Precision::kFp32 ? w : bf16_to_float(float_to_bf16(w))});
      }
    }
    return kept;
  }
};

inline Sparse draw_sparse(Mask mask, Data data, Dice& dice, int64_t gap = 0) {
  TestMatrix weights(mask.rows(), mask.cols(), gap);
  for (int64_t r = 0; r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) {
      weights.at(r, c) = mask.at(r, c) ? draw(data, dice) : NAN;
    }
  }
  return {std::move(weights), std::move(mask)};
}

// ---- masks

enum class Fill { kFull, kPartly };

// `count` of `width` bits.
inline uint64_t draw_bits(int64_t count, int64_t width, Dice& dice) {
  uint64_t bits = 0;
  for (int64_t i = 0; i < width && count > 0; ++i) {
    if (dice.below(width - i) >= count) continue;
    bits |= uint64_t{1} << i;
    --count;
  }
  return bits;
}

// keep:group along the columns; rows that share are equal. Groups restart after every `segment`.
inline Mask draw_mask(int64_t rows, int64_t cols, const Pattern& pattern, Fill fill, Dice& dice,
                      int64_t segment = 0) {
  Mask mask(rows, cols);
  if (segment == 0) segment = cols;
  const int64_t group = pattern.group();
  for (int64_t r = 0; r < rows; ++r) {
    const bool repeats = r % pattern.block() >= group;
    for (int64_t begin = 0; begin < cols; begin += segment) {
      for (int64_t c = begin; c < begin + segment; c += group) {
        const int64_t width = std::min(group, begin + segment - c);
        const int64_t most = std::min<int64_t>(pattern.keep(), width);
        const int64_t count = fill == Fill::kFull ? most : dice.below(most + 1);
        const uint64_t bits = repeats ? mask.bits(r - group, c, static_cast<int>(width))
                                      : draw_bits(count, width, dice);
        mask.put_bits(r, c, static_cast<int>(width), bits);
      }
    }
  }
  return mask;
}

// keep:group along both axes: one group x group tile, repeated over share x share of them. A full
// tile is `keep` shifts of a permutation.
inline Mask draw_transposable_mask(int64_t rows, int64_t cols, const Pattern& pattern, Fill fill,
                                   Dice& dice) {
  Mask mask(rows, cols);
  const int64_t group = pattern.group(), block = pattern.block();
  std::vector<int64_t> order(static_cast<size_t>(group));
  std::vector<bool> tile(static_cast<size_t>(group * group));
  for (int64_t row = 0; row < rows; row += block) {
    for (int64_t col = 0; col < cols; col += block) {
      for (int64_t i = 0; i < group; ++i) {
        const int64_t other = dice.below(i + 1);
        order[static_cast<size_t>(i)] = order[static_cast<size_t>(other)];
        order[static_cast<size_t>(other)] = i;
      }
      for (int64_t i = 0; i < group * group; ++i) {
        tile[static_cast<size_t>(i)] =
            (order[static_cast<size_t>(i / group)] + i) % group < pattern.keep() &&
            (fill == Fill::kFull || dice.below(3) > 0);
      }
      for (int64_t r = row; r < std::min(rows, row + block); ++r) {
        for (int64_t c = col; c < std::min(cols, col + block); ++c) {
          mask.set(r, c, tile[static_cast<size_t>(r % group * group + c % group)]);
        }
      }
    }
  }
  return mask;
}

// ---- the comparator

// What one element of a result should be, in double, and how far a sum of that many products in
// fp32 may be from it, in any order and fused or not: gamma_n times the sum of their magnitudes
// (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1). The double itself is wrong
// by 2^-29 of that at most, for which n counts one term more.
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
    const double nu = static_cast<double>(terms + 1) * 0x1p-24;
    return nu / (1 - nu) * magnitude;
  }
};

struct ExpectedMatrix {
  int64_t rows, cols;
  std::vector<Expected> elements;

  ExpectedMatrix(int64_t rows, int64_t cols)
      : rows(rows), cols(cols), elements(static_cast<size_t>(rows * cols)) {}

  Expected& at(int64_t r, int64_t c) { return elements[static_cast<size_t>(r * cols + c)]; }
  const Expected& at(int64_t r, int64_t c) const {
    return elements[static_cast<size_t>(r * cols + c)];
  }
  void add(int64_t r, int64_t c, double a, double b) { at(r, c).add(a * b); }
};

// Nothing if `got` is right, or the element that is worst, measured by its bound. Integers must be
// equal; so must what is infinite, and NaN stands for NaN. expected(r, c) is an Expected.
template <typename F>
std::string mismatch(MatrixView<const float> got, const F& expected, Data data) {
  double worst = 0;
  int64_t wrong = 0;
  std::string what;
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t c = 0; c < got.cols; ++c) {
      const Expected want = expected(r, c);
      const double a = got.at(r, c), b = want.value;
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      const double bound = data == Data::kIntegers ? 0.0 : want.bound();
      const double error = std::abs(a - b);
      if (std::isfinite(b) && error <= bound) continue;  // false for NaN
      ++wrong;
      const double times = std::isnan(error) ? std::numeric_limits<double>::infinity()
                                             : error / bound;  // infinite for integers
      if (wrong > 1 && !(times > worst)) continue;
      worst = times;
      what = fmt::format("worst at [{}, {}]: got {}, expected {}, {} terms, bound {:.3g}", r, c, a,
                         b, want.terms, bound);
    }
  }
  return wrong == 0 ? ""
                    : fmt::format("{} of {} wrong, {}, seed {}", wrong, got.rows * got.cols, what,
                                  test_seed());
}

inline std::string mismatch(MatrixView<const float> got, const ExpectedMatrix& want, Data data) {
  if (got.rows != want.rows || got.cols != want.cols) {
    return fmt::format("{} x {} where {} x {} was expected", got.rows, got.cols, want.rows,
                       want.cols);
  }
  const auto expected = [&](int64_t r, int64_t c) -> const Expected& { return want.at(r, c); };
  return mismatch(got, expected, data);
}

// The first element whose bits differ, or nothing.
inline std::string difference(const std::vector<uint32_t>& got, const std::vector<uint32_t>& want,
                              int64_t cols) {
  if (got.size() != want.size()) return "other sizes";
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == want[i]) continue;
    return fmt::format("[{}, {}]: {} ({:#x}), not {} ({:#x})", static_cast<int64_t>(i) / cols,
                       static_cast<int64_t>(i) % cols, std::bit_cast<float>(got[i]), got[i],
                       std::bit_cast<float>(want[i]), want[i]);
  }
  return "";
}

// ---- products with a packed operand, through the table of kernels

template <typename T>
void multiply_packed(Product product, MatrixView<const T> activations, const PackedMatrix& packed,
                     const float* bias, float beta, const AnyResult& result) {
  LinearCall call;
  call.product = product;
  call.activations = activations;
  call.packed = &packed;
  call.bias = bias;
  call.beta = beta;
  call.result = result;
  multiply(call, packed.layout() == PackLayout::kTile ? Precision::kBf16 : Precision::kFp32);
}

inline void sparse_forward(MatrixView<const float> x, const PackedMatrix& w, const float* bias,
                           float beta, MatrixView<float> y) {
  multiply_packed(Product::kForward, x, w, bias, beta, y);
}
inline void sparse_forward(MatrixView<const Bf16> x, const PackedMatrix& w, const float* bias,
                           float beta, MatrixView<Bf16> y) {
  multiply_packed(Product::kForward, x, w, bias, beta, y);
}
inline void sparse_backward_data(MatrixView<const float> g, const PackedMatrix& w_transposed,
                                 float beta, MatrixView<float> dx) {
  multiply_packed(Product::kBackwardData, g, w_transposed, nullptr, beta, dx);
}
inline void sparse_backward_data(MatrixView<const Bf16> g, const PackedMatrix& w_transposed,
                                 float beta, MatrixView<Bf16> dx) {
  multiply_packed(Product::kBackwardData, g, w_transposed, nullptr, beta, dx);
}
inline void sparse_backward_weight(const PackedMatrix& g_transposed, MatrixView<const float> x,
                                   float beta, MatrixView<float> dw) {
  multiply_packed(Product::kBackwardWeight, x, g_transposed, nullptr, beta, dw);
}
inline void sparse_backward_weight(const PackedMatrix& g_transposed, MatrixView<const Bf16> x,
                                   float beta, MatrixView<float> dw) {
  multiply_packed(Product::kBackwardWeight, x, g_transposed, nullptr, beta, dw);
}

// ---- instruction sets

struct IsaGuard {
  IsaGuard() { restore_isa(); }
  ~IsaGuard() { restore_isa(); }
};

// Sets with fused multiply-add give the same bits, and so do those without (sse, scalar).
inline bool fused(const std::string& isa) {
  return isa.starts_with("avx") || isa.starts_with("neon");
}

// Calls body(name) with each instruction set in use.
template <typename Body>
void for_each_isa(Body body) {
  const IsaGuard guard;
  for (const std::string& isa : available_isas()) {
    force_isa(isa);
    ASSERT_EQ(current_isa(), isa);
    body(isa);
  }
}

}  // namespace weft::test
