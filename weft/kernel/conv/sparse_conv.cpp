#include "weft/kernel/conv/sparse_conv.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/conv/gather.h"
#include "weft/kernel/conv/image_rows.h"
#include "weft/kernel/conv/phases.h"
#include "weft/kernel/conv/plane_rows.h"
#include "weft/kernel/operand_check.h"
#include "weft/kernel/panel/panel_product.h"

namespace weft {
namespace {

// Where C [channels, images * positions] goes: planes of images, or every few pixels of them.
struct Planes {
  float* data = nullptr;  // the first position of the first channel of the first image
  int64_t image_step = 0;
  int64_t channel_step = 0;
  int64_t out_height = 0, out_width = 0;
  int64_t row_step = 0;  // from one row of positions to the next
  int64_t col_step = 1;
  bool past_caches = false;
};

// Whether a result is too large to be in a cache when it is needed.
bool is_large(int64_t elements) { return elements > int64_t{16 << 20} / int64_t{sizeof(float)}; }

// y = C + bias + beta * y.
class PlanesSink : public TileSink {
 public:
  PlanesSink(const Planes& planes, const float* bias, float beta)
      : planes_(planes), bias_(bias), beta_(beta) {
    if (planes.col_step == 1 && planes.row_step == planes.out_width) {  // planes without gaps
      planes_.out_width *= planes.out_height;
      planes_.out_height = 1;
    }
  }

  void take(const Range& range, const float* tile, int64_t stride) const override {
    const int64_t end = range.first_col + range.cols;
    const int64_t positions = planes_.out_height * planes_.out_width;
    for (int64_t col = range.first_col; col < end;) {
      const int64_t image = col / positions, position = col % positions;
      const int64_t p = position / planes_.out_width, q = position % planes_.out_width;
      const int64_t count = std::min(planes_.out_width - q, end - col);
      PlaneRows block;
      block.from = tile + col - range.first_col;
      block.from_step = stride;
      block.rows = range.rows;
      block.count = count;
      block.bias = bias_ ? bias_ + range.first_row : nullptr;
      block.to = planes_.data + image * planes_.image_step + p * planes_.row_step +
                 q * planes_.col_step + range.first_row * planes_.channel_step;
      block.to_step = planes_.channel_step;
      block.past_caches = planes_.past_caches;
      planes_.col_step == 1 && beta_ == 0.0f ? put_plane_rows(block) : put(block);
      col += count;
    }
  }

 private:
  // Pixel by pixel, or added to what is there.
  void put(const PlaneRows& block) const {
    const int64_t step = planes_.col_step;
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* from = block.from + r * block.from_step;
      float* to = block.to + r * block.to_step;
      for (int64_t i = 0; i < block.count; ++i) {
        const float sum = block.bias ? from[i] + block.bias[r] : from[i];
        to[i * step] = beta_ == 0.0f ? sum : sum + to[i * step];
      }
    }
  }

  Planes planes_;
  const float* bias_;
  float beta_;
};

// C = the gradients of one group of dw [outs, group_ins, taps], columns as in image_rows.h.
class FiltersSink : public TileSink {
 public:
  FiltersSink(const ConvShape& shape, int64_t group, int64_t block, float beta, float* dw)
      : shape_(shape),
        first_out_(group * shape.group_outs()),
        block_(block),
        beta_(beta),
        dw_(dw) {}
  void take(const Range& range, const float* tile, int64_t stride) const override {
    const int64_t taps = shape_.taps(), ins = shape_.group_ins();
    const int64_t stripe = range.first_col / block_;
    const int64_t tap = stripe % taps, channel = stripe / taps * block_;
    const int64_t channels = std::min(block_, ins - channel);
    for (int64_t r = 0; r < range.rows; ++r) {
      float* to = dw_ + ((first_out_ + range.first_row + r) * ins + channel) * taps + tap;
      const float* from = tile + r * stride;
      for (int64_t c = 0; c < channels; ++c) {
        to[c * taps] = beta_ == 0.0f ? from[c] : from[c] + to[c * taps];
      }
    }
  }

 private:
  ConvShape shape_;
  int64_t first_out_;
  int64_t block_;
  float beta_;
  float* dw_;
};

// What the taps of a phase see of g, for the inputs of the phase.
Gather gather_of_gradients(const ConvShape& s, const ConvPhase& phase, const float* g,
                           int64_t group) {
  Gather gather;
  gather.planes = g + group * s.group_outs() * s.positions();
  gather.images = s.images;
  gather.image_step = s.outs * s.positions();
  gather.channels = s.group_outs();
  gather.height = s.out_height();
  gather.width = s.out_width();
  gather.out_height = phase.height;
  gather.out_width = phase.width;
  gather.taps = phase.offsets;
  return gather;
}

// Of a shape that was checked: its sizes divide by groups and strides.
void check_call(const ConvShape& shape, const PackedConv& packed, int64_t matrices, float beta) {
  WEFT_CHECK(beta == 0.0f || beta == 1.0f, "beta {}: accepted are 0 and 1", beta);
  WEFT_CHECK(static_cast<int64_t>(packed.size()) == matrices,
             "{} packed matrices for a convolution of {} groups", packed.size(), shape.groups);
}

void check_matrix(const PackedMatrix& one, int64_t rows, int64_t depth) {
  WEFT_CHECK(one.rows() == rows && one.depth() == depth,
             "a packed matrix of {} x {} where the convolution takes {} x {}", one.rows(),
             one.depth(), rows, depth);
}

}  // namespace

void sparse_conv_forward(const ConvShape& shape, const float* x, const PackedConv& w,
                         const float* bias, float beta, float* y) {
  shape.check();
  check_call(shape, w, shape.groups, beta);
  for (const PackedMatrix& one : w) {
    check_matrix(one, shape.group_outs(), shape.taps() * shape.group_ins());
  }
  check_data("x", x, shape.x_size());
  check_data("y", y, shape.y_size());
  const int64_t positions = shape.positions();
  for (int64_t g = 0; g < shape.groups; ++g) {
    const int64_t first = g * shape.group_outs();
    const Planes planes{
        y + first * positions, shape.outs * positions, positions, shape.out_height(),
        shape.out_width(),     shape.out_width(),      1,         is_large(shape.y_size())};
    multiply_panels(w[static_cast<size_t>(g)], shape.images * positions,
                    GatherSource(gather_of_inputs(shape, x, g)),
                    PlanesSink(planes, bias ? bias + first : nullptr, beta));
  }
}

void sparse_conv_backward_data(const ConvShape& shape, const float* g,
                               const PackedConv& w_transposed, float beta, float* dx) {
  shape.check();
  const std::vector<ConvPhase> phases = backward_phases(shape);
  check_call(shape, w_transposed, static_cast<int64_t>(phases.size()) * shape.groups, beta);
  for (size_t i = 0; i < w_transposed.size(); ++i) {
    const auto taps =
        static_cast<int64_t>(phases[i / static_cast<size_t>(shape.groups)].taps.size());
    check_matrix(w_transposed[i], shape.group_ins(), taps * shape.group_outs());
  }
  check_data("g", g, shape.y_size());
  check_data("dx", dx, shape.x_size());
  const int64_t plane = shape.height * shape.width;
  size_t matrix = 0;
  for (const ConvPhase& phase : phases) {
    for (int64_t group = 0; group < shape.groups; ++group) {
      const Planes planes{dx + group * shape.group_ins() * plane + phase.y * shape.width + phase.x,
                          shape.ins * plane,
                          plane,
                          phase.height,
                          phase.width,
                          shape.stride_h * shape.width,
                          shape.stride_w,
                          is_large(shape.x_size())};
      multiply_panels(w_transposed[matrix++], shape.images * phase.height * phase.width,
                      GatherSource(gather_of_gradients(shape, phase, g, group)),
                      PlanesSink(planes, nullptr, beta));
    }
  }
}

void sparse_conv_backward_weight(const ConvShape& shape, const PackedConv& g, const float* x,
                                 float beta, float* dw) {
  shape.check();
  check_call(shape, g, shape.groups, beta);
  for (const PackedMatrix& one : g) {
    check_matrix(one, shape.group_outs(), shape.images * shape.positions());
  }
  check_data("x", x, shape.x_size());
  check_data("dw", dw, shape.w_size());
  for (int64_t group = 0; group < shape.groups; ++group) {
    const PackedMatrix& of_group = g[static_cast<size_t>(group)];
    const int64_t block = of_group.panel().tile.width;
    const ImageRowsSource rows(shape, x, group, block);
    multiply_panels(of_group, rows.cols(), rows, FiltersSink(shape, group, block, beta, dw));
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
