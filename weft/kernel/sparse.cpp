#include "weft/kernel/sparse.h"

#include <cstring>

#include "weft/core/error.h"
#include "weft/kernel/product.h"
#include "weft/kernel/small_batch.h"
#include "weft/kernel/transpose.h"

namespace weft {
namespace {

// B = the transpose of activations [cols, depth].
class TransposedSource : public PanelSource {
 public:
  explicit TransposedSource(MatrixView<const float> x) : x_(x) {}
  void copy(const Range& range, float* to, int64_t stride) const override {
    transpose({x_.data + range.first_col * x_.row_stride + range.first_row, x_.row_stride,
               range.cols, range.rows, to, stride});
  }

 private:
  MatrixView<const float> x_;
};

// B = activations [depth, cols] as they lie.
class PlainSource : public PanelSource {
 public:
  explicit PlainSource(MatrixView<const float> x) : x_(x) {}
  void copy(const Range& range, float* to, int64_t stride) const override {
    for (int64_t r = 0; r < range.rows; ++r) {
      std::memcpy(to + r * stride,
                  x_.data + (range.first_row + r) * x_.row_stride + range.first_col,
                  static_cast<size_t>(range.cols) * sizeof(float));
    }
  }

 private:
  MatrixView<const float> x_;
};

// C is the transpose of activations [cols, rows].
class TransposedSink : public TileSink {
 public:
  TransposedSink(MatrixView<float> y, const float* bias, float beta)
      : y_(y), bias_(bias), beta_(beta) {}
  void take(const Range& range, const float* tile, int64_t stride) const override {
    transpose_into({tile, stride, range.rows, range.cols,
                    y_.data + range.first_col * y_.row_stride + range.first_row, y_.row_stride},
                   bias_ ? bias_ + range.first_row : nullptr, beta_);
  }

 private:
  MatrixView<float> y_;
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

void check_view(const char* name, MatrixView<const float> view, int64_t rows, int64_t cols) {
  WEFT_CHECK(
      rows >= 0 && cols >= 0 && view.rows == rows && view.cols == cols && view.row_stride >= cols,
      "{} is {} x {} with rows {} apart where the product takes {} x {}", name, view.rows,
      view.cols, view.row_stride, rows, cols);
  WEFT_CHECK(view.data != nullptr || rows == 0 || cols == 0, "{} is null", name);
}

}  // namespace

void sparse_forward(MatrixView<const float> x, const PackedMatrix& w, const float* bias, float beta,
                    MatrixView<float> y) {
  check_beta(beta);
  check_view("x", x, x.rows, w.depth());
  check_view("y", y, x.rows, w.rows());
  if (w.layout() == PackLayout::kStream) return multiply_stream(x, w, bias, beta, y);
  multiply(w, x.rows, TransposedSource(x), TransposedSink(y, bias, beta));
}

void sparse_backward_data(MatrixView<const float> g, const PackedMatrix& w_transposed, float beta,
                          MatrixView<float> dx) {
  check_beta(beta);
  check_view("g", g, g.rows, w_transposed.depth());
  check_view("dx", dx, g.rows, w_transposed.rows());
  multiply(w_transposed, g.rows, TransposedSource(g), TransposedSink(dx, nullptr, beta));
}

void sparse_backward_weight(const PackedMatrix& g_transposed, MatrixView<const float> x, float beta,
                            MatrixView<float> dw) {
  check_beta(beta);
  check_view("x", x, g_transposed.depth(), x.cols);
  check_view("dw", dw, g_transposed.rows(), x.cols);
  multiply(g_transposed, x.cols, PlainSource(x), PlainSink(dw, beta));
}

}  // namespace weft
