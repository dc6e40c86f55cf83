#include "weft/kernel/conv/dense_conv.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "weft/core/aligned_buffer.h"
#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/core/matrix_view.h"
#include "weft/core/parallel.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/conv/onednn_conv.h"
#include "weft/kernel/dense/dense.h"
#include "weft/kernel/operand_check.h"

namespace weft {
namespace {

using onednn::ConvPiece;
using onednn::ConvTensors;

constexpr double kLeastFlops = 1 << 22;  // of a piece: below, threads cost more than they bring

// The least number of items of `flops` flops each that make up a piece.
int64_t least_items(double flops) {
  return static_cast<int64_t>(std::ceil(std::max(1.0, kLeastFlops / flops)));
}

// At most 32 pieces: few enough to cost nothing, many enough to go round. One image at a time stays
// in the cache from one copy to the next: in one piece, 64x64x32x32 -> 64 with 3x3 had 58 GFLOP/s
// on a Zen 3, in 32 pieces 86.
std::vector<ConvPiece> cut_images(const ConvShape& whole) {
  constexpr int64_t kMostPieces = 32;
  const int64_t images = std::max(least_items(whole.flops() / static_cast<double>(whole.images)),
                                  ceil_div(whole.images, kMostPieces));
  std::vector<ConvPiece> pieces;
  for (int64_t first = 0; first < whole.images; first += images) {
    ConvPiece piece{whole, whole.ins, whole.outs};
    piece.shape.images = std::min(images, whole.images - first);
    piece.x = first * (whole.x_size() / whole.images);
    piece.y = first * (whole.y_size() / whole.images);
    pieces.push_back(piece);
  }
  return pieces;
}

// Some output channels of one group, or, where groups are small, some groups. 32 channels were
// about as fast as 64 or 128 on a Zen 3, 16 lost a tenth; and layers of 64 get a second piece.
std::vector<ConvPiece> cut_channels(const ConvShape& whole) {
  constexpr int64_t kOuts = 32;
  const int64_t group_ins = whole.ins / whole.groups, group_outs = whole.outs / whole.groups;
  const int64_t least =
      std::max(kOuts, least_items(whole.flops() / static_cast<double>(whole.outs)));
  const int64_t groups = std::clamp<int64_t>(least / group_outs, 1, whole.groups);
  const int64_t outs = groups > 1 ? group_outs : ceil_div(least, 16) * 16;

  std::vector<ConvPiece> pieces;
  for (int64_t group = 0; group < whole.groups; group += groups) {
    for (int64_t out = 0; out < group_outs; out += outs) {
      ConvPiece piece{whole, whole.ins, whole.outs};
      piece.shape.groups = std::min(groups, whole.groups - group);
      piece.shape.ins = piece.shape.groups * group_ins;
      piece.shape.outs = piece.shape.groups * std::min(outs, group_outs - out);
      const int64_t first = group * group_outs + out;
      piece.x = group * group_ins * whole.height * whole.width;
      piece.w = first * group_ins * whole.kernel_h * whole.kernel_w;
      piece.y = first * whole.out_height() * whole.out_width();
      pieces.push_back(piece);
    }
  }
  return pieces;
}

// A kernel of one tap is a matrix product per image, of matrices as stored:
//
//   y = w x   dx = wᵀ g   dw = Σ g xᵀ     x: [ins, pixels]   g, y: [outs, pixels]   w: [outs, ins]
//
// Without copies to other layouts that is faster if there are pixels enough. On a Zen 3, one
// thread, GFLOP/s of the three products, through oneDNN's convolutions and so: 16x256x56x56 -> 64
// 72, 68, 22 and 83, 83, 73; 16x1024x14x14 -> 256 78, 79, 58 and 84, 78, 73; but 16x2048x7x7 -> 512
// 82, 80, 80 and 68, 53, 57.
bool is_matrix_product(const ConvShape& s) {
  constexpr int64_t kPixels = 128;
  return s.taps() * s.stride_h * s.stride_w * s.groups == 1 && s.pad_h + s.pad_w == 0 &&
         s.positions() >= kPixels;
}

// Strides leave pixels out: of those that are left, a kernel of one tap is such a product.
ConvShape without_strides(const ConvShape& s) {
  ConvShape plain = s;
  if (s.taps() > 1 || s.pad_h + s.pad_w > 0) return plain;
  plain.height = s.out_height();
  plain.width = s.out_width();
  plain.stride_h = plain.stride_w = 1;
  return plain;
}

template <int64_t kStride>  // 0: any
void take_pixels(const float* from, int64_t stride, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i * (kStride > 0 ? kStride : stride)];
}

// The pixels of x that a kernel of one tap sees, [images, ins, out_height, out_width], in memory that
// the calling thread keeps.
const float* seen_pixels(const ConvShape& s, const float* x) {
  thread_local AlignedBuffer<float> pixels;
  const int64_t planes = s.images * s.ins, rows = s.out_height(), cols = s.out_width();
  pixels.reserve(static_cast<size_t>(planes * rows * cols));
  float* const to = pixels.data();
  constexpr int64_t kPlanes = 16;  // of an item
  parallel_for(ceil_div(planes, kPlanes), [&](int64_t item) {
    const int64_t end = std::min(planes, (item + 1) * kPlanes);
    for (int64_t plane = item * kPlanes; plane < end; ++plane) {
      for (int64_t p = 0; p < rows; ++p) {
        const float* from = x + (plane * s.height + p * s.stride_h) * s.width;
        float* row = to + (plane * rows + p) * cols;
        s.stride_w == 2 ? take_pixels<2>(from, 2, cols, row)
                        : take_pixels<0>(from, s.stride_w, cols, row);
      }
    }
  });
  return to;
}

void add_or_set(float value, bool add, float* row, int64_t count) {
  for (int64_t i = 0; i < count; ++i) row[i] = add ? row[i] + value : value;
}

void run_matrix_products(const ConvShape& s, const ConvTensors& call) {
  const int64_t pixels = s.height * s.width;
  const auto x = [&](int64_t image) {
    return MatrixView<const float>(call.x + image * s.ins * pixels, s.ins, pixels);
  };
  const auto g = [&](int64_t image) {
    return MatrixView<const float>(call.y + image * s.outs * pixels, s.outs, pixels);
  };
  const MatrixView<const float> w(call.w, s.outs, s.ins);
  const float beta = call.accumulate ? 1 : 0;
  // The products are those of a linear layer, under other names.
  switch (call.product) {
    case Product::kForward:
      return parallel_for(s.images, [&](int64_t image) {
        const MatrixView<float> y(call.result + image * s.outs * pixels, s.outs, pixels);
        if (call.bias == nullptr) return dense_backward_data(w, x(image), beta, y);
        for (int64_t o = 0; o < s.outs; ++o) {
          add_or_set(call.bias[o], call.accumulate, y.row(o), pixels);
        }
        dense_backward_data(w, x(image), 1, y);
      });
    case Product::kBackwardData:
      return parallel_for(s.images, [&](int64_t image) {
        dense_backward_weight(w, g(image), beta,
                              {call.result + image * s.ins * pixels, s.ins, pixels});
      });
    case Product::kBackwardWeight: {
      // Blocks of outputs, and where these are few, chunks of images, whose sums are added in order.
      constexpr int64_t kOuts = 128, kItems = 8;
      const int64_t blocks = ceil_div(s.outs, kOuts), size = s.outs * s.ins;
      const int64_t chunks = std::clamp<int64_t>(kItems / blocks, 1, s.images);
      thread_local AlignedBuffer<float> others;  // of all chunks but the first
      others.reserve(static_cast<size_t>((chunks - 1) * size));
      float* const sums = others.data();
      parallel_for(chunks * blocks, [&](int64_t item) {
        const int64_t chunk = item / blocks, out = item % blocks * kOuts;
        const int64_t outs = std::min(kOuts, s.outs - out);
        float* const to = chunk == 0 ? call.result : sums + (chunk - 1) * size;
        const int64_t first = chunk * s.images / chunks, end = (chunk + 1) * s.images / chunks;
        for (int64_t image = first; image < end; ++image) {
          const float before = image > first ? 1 : chunk == 0 ? beta : 0;
          dense_forward(g(image).rows_from(out, outs), x(image), nullptr, before,
                        {to + out * s.ins, outs, s.ins});
        }
      });
      for (int64_t chunk = 1; chunk < chunks; ++chunk) {
        const float* from = sums + (chunk - 1) * size;
        for (int64_t i = 0; i < size; ++i) call.result[i] += from[i];
      }
      return;
    }
  }
}

void run(const ConvShape& shape, const ConvTensors& call) {
  if (is_matrix_product(shape)) {
    run_matrix_products(shape, call);
  } else if (call.product == Product::kBackwardWeight) {
    const ConvShape plain = without_strides(shape);
    if (is_matrix_product(plain)) {
      ConvTensors seen = call;
      seen.x = seen_pixels(shape, call.x);
      return run_matrix_products(plain, seen);
    }
    onednn::run_conv(call, cut_channels(shape), shape.groups == 1);
  } else {
    onednn::run_conv(call, cut_images(shape), true);
  }
}

void check(const char* product, const ConvShape& shape, std::array<const float*, 3> tensors,
           float beta) {
  shape.check();
  WEFT_CHECK(beta == 0 || beta == 1, "{}: beta is {}, accepted is 0 or 1", product, beta);
  for (const float* tensor : tensors) {
    WEFT_CHECK(tensor != nullptr || shape.images == 0, "{}: a tensor of convolution {} is null",
               product, shape.str());
  }
}

}  // namespace

void dense_conv_forward(const ConvShape& shape, const float* x, const float* w, const float* bias,
                        float beta, float* y) {
  check("dense_conv_forward", shape, {x, w, y}, beta);
  if (shape.images == 0) return;
  run(shape, {Product::kForward, x, w, nullptr, bias, y, beta != 0});
}

void dense_conv_backward_data(const ConvShape& shape, const float* g, const float* w, float beta,
                              float* dx) {
  check("dense_conv_backward_data", shape, {g, w, dx}, beta);
  if (shape.images == 0) return;
  run(shape, {Product::kBackwardData, nullptr, w, g, nullptr, dx, beta != 0});
}

void dense_conv_backward_weight(const ConvShape& shape, const float* g, const float* x, float beta,
                                float* dw) {
  check("dense_conv_backward_weight", shape, {g, x, dw}, beta);
  WEFT_CHECK(dw != nullptr, "dense_conv_backward_weight: dw is null");
  if (shape.images == 0) {
    if (beta == 0) std::fill_n(dw, shape.w_size(), 0.0f);
    return;
  }
  run(shape, {Product::kBackwardWeight, x, nullptr, g, nullptr, dw, beta != 0});
}

void dense_conv_forward(const ConvShape& shape, const Bf16* x, const Bf16* w, const float* bias,
                        float beta, Bf16* y) {
  shape.check();
  check_data("x", x, shape.x_size());
  check_data("w", w, shape.w_size());
  check_data("y", y, shape.y_size());
  const float* wide_x = expanded(CopyOf::kFirst, x, shape.x_size());
  const float* wide_w = expanded(CopyOf::kSecond, w, shape.w_size());
  rounded_result(y, shape.y_size(), beta,
                 [&](float* sums) { dense_conv_forward(shape, wide_x, wide_w, bias, beta, sums); });
}

void dense_conv_backward_data(const ConvShape& shape, const Bf16* g, const Bf16* w, float beta,
                              Bf16* dx) {
  shape.check();
  check_data("g", g, shape.y_size());
  check_data("w", w, shape.w_size());
  check_data("dx", dx, shape.x_size());
  const float* wide_g = expanded(CopyOf::kFirst, g, shape.y_size());
  const float* wide_w = expanded(CopyOf::kSecond, w, shape.w_size());
  rounded_result(dx, shape.x_size(), beta,
                 [&](float* sums) { dense_conv_backward_data(shape, wide_g, wide_w, beta, sums); });
}

void dense_conv_backward_weight(const ConvShape& shape, const Bf16* g, const Bf16* x, float beta,
                                float* dw) {
  shape.check();
  check_data("g", g, shape.y_size());
  check_data("x", x, shape.x_size());
  const float* wide_g = expanded(CopyOf::kFirst, g, shape.y_size());
  const float* wide_x = expanded(CopyOf::kSecond, x, shape.x_size());
  dense_conv_backward_weight(shape, wide_g, wide_x, beta, dw);
}

}  // namespace weft
