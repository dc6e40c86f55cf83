#include "weft/kernel/sparse.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "weft/core/error.h"
#include "weft/core/transpose.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/panel/product.h"
#include "weft/kernel/stream/small_batch.h"
#include "weft/kernel/tile/tile_product.h"

namespace weft {
namespace {

// Activations of either type: bf16 is expanded where a panel is copied, and rounded where a tile is
// taken.
void copy_row(const float* from, int64_t size, float* to) {
  std::memcpy(to, from, static_cast<size_t>(size) * sizeof(float));
}
void copy_row(const Bf16* from, int64_t size, float* to) { expand_here(from, size, to); }

// B = the transpose of activations [cols, depth].
template <typename T>
class TransposedSource : public PanelSource {
 public:
  explicit TransposedSource(MatrixView<const T> x) : x_(x) {}
  void copy(const Range& range, float* to, int64_t stride) const override {
    transpose(TurnOf<T, float>{x_.data + range.first_col * x_.row_stride + range.first_row,
                               x_.row_stride, range.cols, range.rows, to, stride});
  }

 private:
  MatrixView<const T> x_;
};

// B = activations [depth, cols] as they lie.
template <typename T>
class PlainSource : public PanelSource {
 public:
  explicit PlainSource(MatrixView<const T> x) : x_(x) {}
  void copy(const Range& range, float* to, int64_t stride) const override {
    for (int64_t r = 0; r < range.rows; ++r) {
      copy_row(x_.data + (range.first_row + r) * x_.row_stride + range.first_col, range.cols,
               to + r * stride);
    }
  }

 private:
  MatrixView<const T> x_;
};

// C is the transpose of activations [cols, rows].
template <typename T>
class TransposedSink : public TileSink {
 public:
  TransposedSink(MatrixView<T> y, const float* bias, float beta)
      : y_(y), bias_(bias), beta_(beta) {}
  void take(const Range& range, const float* tile, int64_t stride) const override {
    transpose_into(TurnOf<float, T>{tile, stride, range.rows, range.cols,
                                    y_.data + range.first_col * y_.row_stride + range.first_row,
                                    y_.row_stride},
                   bias_ ? bias_ + range.first_row : nullptr, beta_);
  }
  bool gathers() const override { return true; }
  void gather(const Range& range, const float* const* rows) const override {
    constexpr int64_t kAtOnce = 64;  // their columns stay in L1 until they are turned
    for (int64_t r = 0; r < range.rows; r += kAtOnce) {
      const int64_t first = range.first_row + r;
      TurnOf<float, T> turn{nullptr,
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

void check_beta(float beta) {
  WEFT_CHECK(beta == 0.0f || beta == 1.0f, "beta {}: accepted are 0 and 1", beta);
}

template <typename T>
void check_view(const char* name, MatrixView<T> view, int64_t rows, int64_t cols) {
  WEFT_CHECK(
      rows >= 0 && cols >= 0 && view.rows == rows && view.cols == cols && view.row_stride >= cols,
      "{} is {} x {} with rows {} apart where the product takes {} x {}", name, view.rows,
      view.cols, view.row_stride, rows, cols);
  WEFT_CHECK(view.data != nullptr || rows == 0 || cols == 0, "{} is null", name);
}

// The layout with few tokens is read by a loop of its own, which takes floats.
void stream_product(MatrixView<const float> x, const PackedMatrix& w, const float* bias, float beta,
                    MatrixView<float> y) {
  multiply_stream(x, w, bias, beta, y);
}
void stream_product(MatrixView<const Bf16> x, const PackedMatrix& w, const float* bias, float beta,
                    MatrixView<Bf16> y) {
  const MatrixView<float> wide_x(fp32_copy(CopyOf::kFirst, x.rows * x.cols), x.rows, x.cols);
  const MatrixView<float> wide_y(fp32_copy(CopyOf::kResult, y.rows * y.cols), y.rows, y.cols);
  expand(x, wide_x);
  if (beta != 0.0f) expand(y, wide_y);
  multiply_stream(wide_x, w, bias, beta, wide_y);
  round_to_bf16(wide_y, y);
}

// Tiles are multiplied with bf16 only.
template <typename T>
void tile_product(const PackedMatrix& a, int64_t cols, MatrixView<const T> b, bool transposed,
                  const TileSink& c) {
  if constexpr (std::is_same_v<T, Bf16>) {
    multiply_tiles(a, cols, {b, transposed}, c);
  } else {
    throw Error("a matrix packed in tiles is multiplied with bf16 activations, not with fp32");
  }
}

template <typename T>
void forward_as(MatrixView<const T> x, const PackedMatrix& w, const float* bias, float beta,
                MatrixView<T> y) {
  check_beta(beta);
  check_view("x", x, x.rows, w.depth());
  check_view("y", y, x.rows, w.rows());
  if (w.layout() == PackLayout::kStream) return stream_product(x, w, bias, beta, y);
  const TransposedSink<T> sink(y, bias, beta);
  if (w.layout() == PackLayout::kTile) return tile_product(w, x.rows, x, true, sink);
  multiply(w, x.rows, TransposedSource<T>(x), sink);
}

template <typename T>
void backward_data_as(MatrixView<const T> g, const PackedMatrix& w_transposed, float beta,
                      MatrixView<T> dx) {
  check_beta(beta);
  check_view("g", g, g.rows, w_transposed.depth());
  check_view("dx", dx, g.rows, w_transposed.rows());
  const TransposedSink<T> sink(dx, nullptr, beta);
  if (w_transposed.layout() == PackLayout::kTile) {
    return tile_product(w_transposed, g.rows, g, true, sink);
  }
  multiply(w_transposed, g.rows, TransposedSource<T>(g), sink);
}

template <typename T>
void backward_weight_as(const PackedMatrix& g_transposed, MatrixView<const T> x, float beta,
                        MatrixView<float> dw) {
  check_beta(beta);
  check_view("x", x, g_transposed.depth(), x.cols);
  check_view("dw", dw, g_transposed.rows(), x.cols);
  const PlainSink sink(dw, beta);
  if (g_transposed.layout() == PackLayout::kTile) {
    return tile_product(g_transposed, x.cols, x, false, sink);
  }
  multiply(g_transposed, x.cols, PlainSource<T>(x), sink);
}

}  // namespace

void sparse_forward(MatrixView<const float> x, const PackedMatrix& w, const float* bias, float beta,
                    MatrixView<float> y) {
  forward_as(x, w, bias, beta, y);
}
void sparse_forward(MatrixView<const Bf16> x, const PackedMatrix& w, const float* bias, float beta,
                    MatrixView<Bf16> y) {
  forward_as(x, w, bias, beta, y);
}

void sparse_backward_data(MatrixView<const float> g, const PackedMatrix& w_transposed, float beta,
                          MatrixView<float> dx) {
  backward_data_as(g, w_transposed, beta, dx);
}
void sparse_backward_data(MatrixView<const Bf16> g, const PackedMatrix& w_transposed, float beta,
                          MatrixView<Bf16> dx) {
  backward_data_as(g, w_transposed, beta, dx);
}

void sparse_backward_weight(const PackedMatrix& g_transposed, MatrixView<const float> x, float beta,
                            MatrixView<float> dw) {
  backward_weight_as(g_transposed, x, beta, dw);
}
void sparse_backward_weight(const PackedMatrix& g_transposed, MatrixView<const Bf16> x, float beta,
                            MatrixView<float> dw) {
  backward_weight_as(g_transposed, x, beta, dw);
}

}  // namespace weft
