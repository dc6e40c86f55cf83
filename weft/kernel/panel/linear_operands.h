// How the activations of a linear layer become the dense operand and the result of a sparse product
// C = A B (panel_product.h): as stored, or transposed on the way. For panel.cpp and tile/tile.cpp.
#pragma once

#include <algorithm>
#include <cstring>

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"
#include "weft/core/transpose.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/panel/panel_product.h"

namespace weft {

// Activations of either type: bf16 is expanded where a panel is copied, and rounded where a tile is
// taken.
inline void copy_row(const float* from, int64_t size, float* to) {
  std::memcpy(to, from, static_cast<size_t>(size) * sizeof(float));
}
inline void copy_row(const Bf16* from, int64_t size, float* to) { expand_here(from, size, to); }

// A source whose copies have nothing in common: Copy is called with (range, to, stride).
template <typename Copy>
class SourceOf : public PanelSource {
 public:
  explicit SourceOf(Copy copy) : copy_(copy) {}
  std::unique_ptr<BandReader> band(int64_t, int64_t) const override {
    return std::make_unique<Reader>(copy_);
  }

 private:
  struct Reader : BandReader {
    explicit Reader(const Copy& copy) : copy_of(copy) {}
    void copy(const Range& range, float* to, int64_t stride) override {
      copy_of(range, to, stride);
    }
    const Copy& copy_of;
  };
  Copy copy_;
};

// B = the transpose of activations [cols, depth].
template <typename T>
auto transposed_source(MatrixView<const T> x) {
  return SourceOf([x](const Range& range, float* to, int64_t stride) {
    transpose(TransposeOf<T, float>{x.data + range.first_col * x.row_stride + range.first_row,
                                    x.row_stride, range.cols, range.rows, to, stride});
  });
}

// B = activations [depth, cols] as stored.
template <typename T>
auto plain_source(MatrixView<const T> x) {
  return SourceOf([x](const Range& range, float* to, int64_t stride) {
    for (int64_t r = 0; r < range.rows; ++r) {
      copy_row(x.data + (range.first_row + r) * x.row_stride + range.first_col, range.cols,
               to + r * stride);
    }
  });
}

// C is the transpose of activations [cols, rows].
template <typename T>
class TransposedSink : public TileSink {
 public:
  TransposedSink(MatrixView<T> y, const float* bias, float beta)
      : y_(y), bias_(bias), beta_(beta) {}
  void take(const Range& range, const float* tile, int64_t stride) const override {
    transpose_into(
        TransposeOf<float, T>{tile, stride, range.rows, range.cols,
                              y_.data + range.first_col * y_.row_stride + range.first_row,
                              y_.row_stride},
        bias_ ? bias_ + range.first_row : nullptr, beta_);
  }
  bool gathers() const override { return true; }
  void gather(const Range& range, const float* const* rows) const override {
    constexpr int64_t kAtOnce = 64;  // their columns stay in L1 until they are transposed
    for (int64_t r = 0; r < range.rows; r += kAtOnce) {
      const int64_t first = range.first_row + r;
      TransposeOf<float, T> turn{nullptr,
                                 0,
                                 std::min(kAtOnce, range.rows - r),
                                 range.cols,
                                 y_.data + range.first_col * y_.row_stride + first,
                                 y_.row_stride};
      turn.from_rows = rows + r;
      transpose_into(turn, bias_ ? bias_ + first : nullptr, beta_);
    }
  }

 private:
  MatrixView<T> y_;
  const float* bias_;
  float beta_;
};

// C [rows, cols] as it is.
class PlainSink : public TileSink {
 public:
  PlainSink(MatrixView<float> c, float beta) : c_(c), beta_(beta) {}
  void take(const Range& range, const float* tile, int64_t stride) const override {
    for (int64_t r = 0; r < range.rows; ++r) {
      const float* from = tile + r * stride;
      float* to = c_.data + (range.first_row + r) * c_.row_stride + range.first_col;
      if (beta_ == 0.0f) {
        std::memcpy(to, from, static_cast<size_t>(range.cols) * sizeof(float));
      } else {
        for (int64_t c = 0; c < range.cols; ++c) to[c] += from[c];
      }
    }
  }

 private:
  MatrixView<float> c_;
  float beta_;
};

}  // namespace weft
