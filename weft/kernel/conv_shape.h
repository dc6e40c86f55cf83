// ConvShape: a two-dimensional convolution, with torch's conventions. Activations are NCHW, weights
// [outs, ins / groups, kernel_h, kernel_w]; dilation 1 means none.
#pragma once

#include <cstdint>

#include "weft/core/error.h"
#include "weft/core/weight_shape.h"

namespace weft {

struct ConvShape {
  int64_t images = 0;
  int64_t ins = 0;  // channels
  int64_t height = 0;
  int64_t width = 0;
  int64_t outs = 0;  // channels
  int64_t kernel_h = 1;
  int64_t kernel_w = 1;
  int64_t stride_h = 1;
  int64_t stride_w = 1;
  int64_t pad_h = 0;
  int64_t pad_w = 0;
  int64_t dilation_h = 1;
  int64_t dilation_w = 1;
  int64_t groups = 1;

  int64_t out_height() const {
    return (height + 2 * pad_h - dilation_h * (kernel_h - 1) - 1) / stride_h + 1;
  }
  int64_t out_width() const {
    return (width + 2 * pad_w - dilation_w * (kernel_w - 1) - 1) / stride_w + 1;
  }
  int64_t positions() const { return out_height() * out_width(); }
  int64_t taps() const { return kernel_h * kernel_w; }
  int64_t group_ins() const { return ins / groups; }
  int64_t group_outs() const { return outs / groups; }
  WeightShape weight_shape() const { return {outs, group_ins(), taps()}; }

  // Throws Error unless every size is possible and nothing overflows.
  void check() const;
};

}  // namespace weft
