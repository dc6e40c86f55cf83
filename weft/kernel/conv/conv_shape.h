// ConvShape: the sizes of a two-dimensional convolution, in torch's conventions.
//
//   y[n, o, p, q] = bias[o] + Σ x[n, i, p·stride_h + a·dilation_h - pad_h,
//                                       q·stride_w + b·dilation_w - pad_w] · w[o, i, a, b]
//
// over the input channels i of o's group and the taps (a, b); outside of the image x is 0.
//
//   x: [images, ins, height, width]          w: [outs, ins / groups, kernel_h, kernel_w]
//   y: [images, outs, out_height, out_width]
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "weft/core/weight_shape.h"

namespace weft {

struct ConvShape {
  int64_t images = 0;
  int64_t ins = 0;  // channels, of all groups
  int64_t height = 0, width = 0;
  int64_t outs = 0;  // channels, of all groups
  int64_t kernel_h = 1, kernel_w = 1;
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;            // on both sides
  int64_t dilation_h = 1, dilation_w = 1;  // 1: neighbouring taps touch neighbouring pixels
  int64_t groups = 1;

  auto operator<=>(const ConvShape&) const = default;

  // Throws Error, which names the numbers, unless all sizes are positive (images may be 0), groups
  // divide the channels, the kernel fits into the padded image, and no element count overflows.
  void check() const;

  // These, like the rest, are only for a shape that has been checked.
  int64_t out_height() const {
    return (height + 2 * pad_h - dilation_h * (kernel_h - 1) - 1) / stride_h + 1;
  }
  int64_t out_width() const {
    return (width + 2 * pad_w - dilation_w * (kernel_w - 1) - 1) / stride_w + 1;
  }
  int64_t positions() const { return out_height() * out_width(); }  // of one image
  int64_t taps() const { return kernel_h * kernel_w; }
  int64_t group_ins() const { return ins / groups; }
  int64_t group_outs() const { return outs / groups; }
  WeightShape weight_shape() const { return {outs, group_ins(), taps()}; }
  int64_t x_size() const { return images * ins * height * width; }
  int64_t w_size() const { return outs * (ins / groups) * kernel_h * kernel_w; }
  int64_t y_size() const { return images * outs * out_height() * out_width(); }
  double flops() const;  // of one product, taps over padding counted

  std::string str() const;  // "8x64x56x56 -> 128, kernel 3x3, stride 2x2, ..."

  // IMAGESxINSxHEIGHTxWIDTH:OUTSxKHxKW, then what is not the default: "8x64x56x56:128x3x3,
  // stride=2,pad=1" (without the space), or "stride=2x1" where the axes differ. parse() takes
  // stride, pad, dilation and groups in any order, and checks the shape.
  std::string spec() const;
  static ConvShape parse(std::string_view text);
};

}  // namespace weft
