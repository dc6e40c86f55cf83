// Backward-data of a convolution as forward products, without strides.
//
// The inputs whose row is y modulo stride_h and whose column is x modulo stride_w are a phase. They
// all see the same taps, and a tap reads neighbouring outputs for neighbouring inputs of the phase:
//
//   dx[n, c, p * stride_h + y, q * stride_w + x] =
//     Σ over outs o and the taps of the phase:  w[o, c, tap] * g[n, o, p + tap.dy, q + tap.dx]
//
// A convolution of stride 1 has one phase, of all taps. Of stride 2 with one tap, three of the four
// phases have no taps, and dx is zero there.
#pragma once

#include <vector>

#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/conv/gather.h"

namespace weft {

struct ConvPhase {
  int64_t y = 0, x = 0;
  int64_t height = 0, width = 0;   // inputs of the phase; 0 if the image is smaller than the stride
  std::vector<int64_t> taps;       // of the kernel, in order
  std::vector<TapOffset> offsets;  // where they read, as many
};

// Row by row: phase y * stride_w + x. Their taps do not depend on the size of images.
std::vector<ConvPhase> backward_phases(const ConvShape& shape);

}  // namespace weft
