#include "weft/kernel/conv_shape.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "weft/core/error.h"

namespace weft {
namespace {

bool overflows(std::initializer_list<int64_t> sizes) {
  int64_t product = 4;  // bytes of a float
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(product, std::max<int64_t>(size, 1), &product)) return true;
  }
  return false;
}

}  // namespace

void ConvShape::check() const {
  constexpr int64_t kMost = int64_t{1}
                            << 30;  // of any size: sums and pairs of them do not overflow
  WEFT_CHECK(images >= 0 && images <= kMost, "convolution {}: accepted are 0 to {} images", str(),
             kMost);
  for (const int64_t size : {ins, height, width, outs, kernel_h, kernel_w, stride_h, stride_w,
                             dilation_h, dilation_w, groups}) {
    WEFT_CHECK(size >= 1 && size <= kMost,
               "convolution {}: a size is {}, accepted is 1 to {} (0 only for images and padding)",
               str(), size, kMost);
  }
  WEFT_CHECK(pad_h >= 0 && pad_h <= kMost && pad_w >= 0 && pad_w <= kMost,
             "convolution {}: padding {} x {}, accepted is 0 to {}", str(), pad_h, pad_w, kMost);
  WEFT_CHECK(ins % groups == 0 && outs % groups == 0,
             "convolution {}: {} groups do not divide {} input and {} output channels", str(),
             groups, ins, outs);
  WEFT_CHECK(dilation_h * (kernel_h - 1) < height + 2 * pad_h &&
                 dilation_w * (kernel_w - 1) < width + 2 * pad_w,
             "convolution {}: the kernel spans {} x {} pixels, more than the {} x {} of the padded "
             "image",
             str(), dilation_h * (kernel_h - 1) + 1, dilation_w * (kernel_w - 1) + 1,
             height + 2 * pad_h, width + 2 * pad_w);
  WEFT_CHECK(!overflows({images, ins, height, width}) &&
                 !overflows({images, outs, out_height(), out_width()}) &&
                 !overflows({outs, ins / groups, kernel_h, kernel_w}) &&
                 !overflows({ins, kernel_h, kernel_w, out_height(), out_width()}),
             "convolution {}: more elements than 64 bits count", str());
}

double ConvShape::flops() const {
  return 2 * static_cast<double>(y_size()) *
         static_cast<double>(ins / groups * kernel_h * kernel_w);
}

std::string ConvShape::str() const {
  return fmt::format(
      "{}x{}x{}x{} -> {}, kernel {}x{}, stride {}x{}, padding {}x{}, dilation {}x{}, groups {}",
      images, ins, height, width, outs, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w,
      dilation_h, dilation_w, groups);
}

}  // namespace weft
