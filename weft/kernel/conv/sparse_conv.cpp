#include "weft/kernel/conv/sparse_conv.h"

#include <algorithm>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/conv/im2col.h"
#include "weft/kernel/operand_check.h"
#include "weft/kernel/panel/panel_product.h"

namespace weft {
namespace {

// C = the outputs [group_outs, images * positions] of one group of y [images, outs, positions].
class PlanesSink : public TileSink {
 public:
  PlanesSink(const ConvShape& shape, int64_t group, const float* bias, float beta, float* y)
      : shape_(shape), first_out_(group * shape.group_outs()), bias_(bias), beta_(beta), y_(y) {}

  void take(const Range& range, const float* tile, int64_t stride) const override {
    const int64_t positions = shape_.positions();
    for (int64_t r = 0; r < range.rows; ++r) {
      const int64_t out = first_out_ + range.first_row + r;
      const float bias = bias_ ? bias_[out] : 0.0f;
      const float* from = tile + r * stride;
      for (int64_t col = range.first_col; col < range.first_col + range.cols;) {
        const int64_t image = col / positions, position = col % positions;
        const int64_t count = std::min(positions - position, range.first_col + range.cols - col);
        float* to = y_ + (image * shape_.outs + out) * positions + position;
        for (int64_t i = 0; i < count; ++i) {
          const float sum = bias_ ? from[i] + bias : from[i];
          to[i] = beta_ == 0.0f ? sum : sum + to[i];
        }
        from += count;
        col += count;
      }
    }
  }

 private:
  ConvShape shape_;
  int64_t first_out_;
  const float* bias_;
  float beta_;
  float* y_;
};

// B = the gradient [group_outs, positions] of one image and group, as stored.
class PlanesSource : public PanelSource {
 public:
  PlanesSource(const float* planes, int64_t positions) : planes_(planes), positions_(positions) {}
  void copy(const Range& range, float* to, int64_t stride) const override {
    for (int64_t r = 0; r < range.rows; ++r) {
      std::memcpy(to + r * stride, planes_ + (range.first_row + r) * positions_ + range.first_col,
                  static_cast<size_t>(range.cols) * sizeof(float));
    }
  }

 private:
  const float* planes_;
  int64_t positions_;
};

// C = columns [taps * group_ins, positions], kept for add_columns.
class ColumnsSink : public TileSink {
 public:
  ColumnsSink(float* columns, int64_t positions) : columns_(columns), positions_(positions) {}
  void take(const Range& range, const float* tile, int64_t stride) const override {
    for (int64_t r = 0; r < range.rows; ++r) {
      std::memcpy(columns_ + (range.first_row + r) * positions_ + range.first_col,
                  tile + r * stride, static_cast<size_t>(range.cols) * sizeof(float));
    }
  }

 private:
  float* columns_;
  int64_t positions_;
};

// C = the weights [group_outs, taps * group_ins] of one group of dw [outs, group_ins, taps].
class FiltersSink : public TileSink {
 public:
  FiltersSink(const ConvShape& shape, int64_t group, float beta, float* dw)
      : shape_(shape), first_out_(group * shape.group_outs()), beta_(beta), dw_(dw) {}
  void take(const Range& range, const float* tile, int64_t stride) const override {
    const int64_t taps = shape_.taps(), ins = shape_.group_ins();
    for (int64_t r = 0; r < range.rows; ++r) {
      float* filter = dw_ + (first_out_ + range.first_row + r) * ins * taps;
      for (int64_t c = 0; c < range.cols; ++c) {
        const int64_t tap = (range.first_col + c) / ins, channel = (range.first_col + c) % ins;
        float& to = filter[channel * taps + tap];
        to = beta_ == 0.0f ? tile[r * stride + c] : tile[r * stride + c] + to;
      }
    }
  }

 private:
  ConvShape shape_;
  int64_t first_out_;
  float beta_;
  float* dw_;
};

// Of a shape that was checked: its sizes divide by groups and strides.
void check_call(const ConvShape& shape, const PackedConv& packed, int64_t rows, int64_t depth,
                float beta) {
  WEFT_CHECK(beta == 0.0f || beta == 1.0f, "beta {}: accepted are 0 and 1", beta);
  WEFT_CHECK(static_cast<int64_t>(packed.size()) == shape.groups,
             "{} packed matrices for a convolution of {} groups", packed.size(), shape.groups);
  for (const PackedMatrix& one : packed) {
    WEFT_CHECK(one.rows() == rows && one.depth() == depth,
               "a packed matrix of {} x {} where the convolution takes {} x {}", one.rows(),
               one.depth(), rows, depth);
  }
}

}  // namespace

void sparse_conv_forward(const ConvShape& shape, const float* x, const PackedConv& w,
                         const float* bias, float beta, float* y) {
  shape.check();
  check_call(shape, w, shape.group_outs(), shape.taps() * shape.group_ins(), beta);
  check_data("x", x, shape.x_size());
  check_data("y", y, shape.y_size());
  for (int64_t g = 0; g < shape.groups; ++g) {
    multiply_panels(w[static_cast<size_t>(g)], shape.images * shape.positions(),
                    Im2colSource(shape, x, g), PlanesSink(shape, g, bias, beta, y));
  }
}

void sparse_conv_backward_data(const ConvShape& shape, const float* g,
                               const PackedConv& w_transposed, float beta, float* dx) {
  shape.check();
  const int64_t rows = shape.taps() * shape.group_ins();
  check_call(shape, w_transposed, rows, shape.group_outs(), beta);
  check_data("g", g, shape.y_size());
  check_data("dx", dx, shape.x_size());
  const int64_t positions = shape.positions(), plane = shape.height * shape.width;
  // Images in parallel; a single image is split inside.
  parallel_for(shape.images * shape.groups, [&](int64_t item) {
    const int64_t image = item / shape.groups, group = item % shape.groups;
    thread_local AlignedBuffer<float> scratch;
    scratch.reserve(static_cast<size_t>(rows * positions));
    float* columns = scratch.data();
    const float* planes = g + (image * shape.outs + group * shape.group_outs()) * positions;
    multiply_panels(w_transposed[static_cast<size_t>(group)], positions,
                    PlanesSource(planes, positions), ColumnsSink(columns, positions));
    parallel_for(shape.group_ins(), [&](int64_t channel) {
      float* to = dx + (image * shape.ins + group * shape.group_ins() + channel) * plane;
      if (beta == 0.0f) std::fill_n(to, plane, 0.0f);
      add_columns(shape, columns + channel * positions, shape.group_ins() * positions, to);
    });
  });
}

void sparse_conv_backward_weight(const ConvShape& shape, const PackedConv& g, const float* x,
                                 float beta, float* dw) {
  shape.check();
  check_call(shape, g, shape.group_outs(), shape.images * shape.positions(), beta);
  check_data("x", x, shape.x_size());
  check_data("dw", dw, shape.w_size());
  for (int64_t group = 0; group < shape.groups; ++group) {
    multiply_panels(g[static_cast<size_t>(group)], shape.taps() * shape.group_ins(),
                    Im2rowSource(shape, x, group), FiltersSink(shape, group, beta, dw));
  }
}

void sparse_conv_forward(const ConvShape& shape, const Bf16* x, const PackedConv& w,
                         const float* bias, float beta, Bf16* y) {
  shape.check();
  check_data("x", x, shape.x_size());
  check_data("y", y, shape.y_size());
  const float* wide_x = expanded(CopyOf::kFirst, x, shape.x_size());
  rounded_result(y, shape.y_size(), beta,
                 [&](float* sums) { sparse_conv_forward(shape, wide_x, w, bias, beta, sums); });
}

void sparse_conv_backward_data(const ConvShape& shape, const Bf16* g,
                               const PackedConv& w_transposed, float beta, Bf16* dx) {
  shape.check();
  check_data("g", g, shape.y_size());
  check_data("dx", dx, shape.x_size());
  const float* wide_g = expanded(CopyOf::kFirst, g, shape.y_size());
  rounded_result(dx, shape.x_size(), beta, [&](float* sums) {
    sparse_conv_backward_data(shape, wide_g, w_transposed, beta, sums);
  });
}

void sparse_conv_backward_weight(const ConvShape& shape, const PackedConv& g, const Bf16* x,
                                 float beta, float* dw) {
  shape.check();
  check_data("x", x, shape.x_size());
  sparse_conv_backward_weight(shape, g, expanded(CopyOf::kFirst, x, shape.x_size()), beta, dw);
}

}  // namespace weft
