#include "weft/kernel/conv_shape.h"

#include <initializer_list>

namespace weft {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 40;

// The product of sizes, or -1 if it is more than any tensor here may have.
int64_t elements(std::initializer_list<int64_t> sizes) {
  int64_t all = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(all, size, &all) || all > kMostElements) return -1;
  }
  return all;
}

}  // namespace

void ConvShape::check() const {
  constexpr int64_t kMostSide = int64_t{1} << 24;
  WEFT_CHECK(
      images >= 0 && ins >= 0 && outs >= 0 && height >= 0 && width >= 0 && height <= kMostSide &&
          width <= kMostSide,
      "a convolution of {} images of {} x {} x {} to {} channels: sizes must not be negative "
      "or overflow",
      images, ins, height, width, outs);
  for (const int64_t size : {kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w}) {
    WEFT_CHECK(
        size >= 1 && size <= kMostSide,
        "a convolution with kernel {} x {}, stride {} x {}, dilation {} x {}: each must be at "
        "least 1",
        kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w);
  }
  WEFT_CHECK(pad_h >= 0 && pad_w >= 0 && pad_h <= kMostSide && pad_w <= kMostSide,
             "a convolution with padding {} x {}: it must not be negative", pad_h, pad_w);
  WEFT_CHECK(groups >= 1 && ins % groups == 0 && outs % groups == 0,
             "a convolution of {} to {} channels in {} groups: both must be multiples of it", ins,
             outs, groups);
  WEFT_CHECK(
      height + 2 * pad_h >= dilation_h * (kernel_h - 1) + 1 &&
          width + 2 * pad_w >= dilation_w * (kernel_w - 1) + 1,
      "a convolution of {} x {} with padding {} x {}: the kernel of {} x {} with dilation {} x "
      "{} is larger",
      height, width, pad_h, pad_w, kernel_h, kernel_w, dilation_h, dilation_w);
  WEFT_CHECK(
      elements({images, ins, height, width}) >= 0 &&
          elements({images, outs, out_height(), out_width()}) >= 0 &&
          elements({outs, group_ins(), kernel_h, kernel_w}) >= 0 &&
          elements({ins, kernel_h, kernel_w, out_height(), out_width()}) >= 0,
      "a convolution of {} images of {} x {} x {} to {} channels: a tensor of more than 2^40 "
      "elements",
      images, ins, height, width, outs);
}

}  // namespace weft
