// A convolution as the sum of products that its formula says (kernel/conv/conv_shape.h): what the
// tests of its kernels are compared with.
#pragma once

#include <cstdint>
#include <functional>

#include "weft/kernel/conv/conv_shape.h"

namespace weft::test {

// Where elements lie in the tensors of a convolution.
inline int64_t input_at(const ConvShape& s, int64_t n, int64_t c, int64_t y, int64_t x) {
  return ((n * s.ins + c) * s.height + y) * s.width + x;
}
inline int64_t output_at(const ConvShape& s, int64_t n, int64_t o, int64_t y, int64_t x) {
  return ((n * s.outs + o) * s.out_height() + y) * s.out_width() + x;
}

// One multiplication of a convolution, by the indices of its three elements.
struct Term {
  int64_t input, weight, output;
  int64_t out, image, position;
};

inline void for_each_term(const ConvShape& s, const std::function<void(const Term&)>& body) {
  const int64_t ins = s.ins / s.groups, outs = s.outs / s.groups;
  for (int64_t n = 0; n < s.images; ++n) {
    for (int64_t o = 0; o < s.outs; ++o) {
      for (int64_t oy = 0; oy < s.out_height(); ++oy) {
        for (int64_t ox = 0; ox < s.out_width(); ++ox) {
          for (int64_t i = 0; i < ins; ++i) {
            for (int64_t ky = 0; ky < s.kernel_h; ++ky) {
              for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
                const int64_t iy = oy * s.stride_h + ky * s.dilation_h - s.pad_h;
                const int64_t ix = ox * s.stride_w + kx * s.dilation_w - s.pad_w;
                if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
                body({input_at(s, n, o / outs * ins + i, iy, ix),
                      ((o * ins + i) * s.kernel_h + ky) * s.kernel_w + kx,
                      output_at(s, n, o, oy, ox), o, n, oy * s.out_width() + ox});
              }
            }
          }
        }
      }
    }
  }
}

inline ConvShape conv_shape(int64_t images, int64_t ins, int64_t height, int64_t width,
                            int64_t outs, int64_t kernel_h, int64_t kernel_w) {
  ConvShape s;
  s.images = images;
  s.ins = ins;
  s.height = height;
  s.width = width;
  s.outs = outs;
  s.kernel_h = kernel_h;
  s.kernel_w = kernel_w;
  return s;
}

}  // namespace weft::test
