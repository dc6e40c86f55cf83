// The dense products of a convolution, through oneDNN. Shapes and formula are in conv_shape.h.
//
//   forward          y  = conv(x, w) + bias + beta·y
//   backward data    dx = the gradient of x, given that of y, g: [images, outs, out_h, out_w]
//                         + beta·dx
//   backward weight  dw = the gradient of w + beta·dw
//
// All tensors are dense, NCHW, and the caller's; the result must not overlap an operand. beta is 0
// or 1; with 0 the result is only written, so it may hold NaN before. Without images dw is beta·dw.
//
// The result is cut into pieces, a function of the shape alone, and each piece is one primitive of
// oneDNN on one thread, so that the result does not depend on the number of threads: whole images,
// or, for dw, whose reduction runs over images, blocks of output channels.
//
// bf16 tensors are expanded to fp32, and results rounded to the nearest bf16 once, at the end; dw
// is fp32. The copies are as large as the tensors, in memory that the calling thread keeps.
//
// Cost: shape.flops() at the speed of oneDNN's convolutions, and copies of the tensors into the
// layouts that these want. Primitives are kept, at most 256 of them, for shapes that come again.
//
// Test: tests/kernel/conv/dense_conv_test.cpp. Benchmark: `weft bench conv`.
#pragma once

#include "weft/core/bf16.h"
#include "weft/kernel/conv/conv_shape.h"

namespace weft {

void dense_conv_forward(const ConvShape& shape, const float* x, const float* w,
                        const float* bias,  // [outs], or null for none
                        float beta, float* y);
void dense_conv_forward(const ConvShape& shape, const Bf16* x, const Bf16* w, const float* bias,
                        float beta, Bf16* y);

void dense_conv_backward_data(const ConvShape& shape, const float* g, const float* w, float beta,
                              float* dx);
void dense_conv_backward_data(const ConvShape& shape, const Bf16* g, const Bf16* w, float beta,
                              Bf16* dx);

void dense_conv_backward_weight(const ConvShape& shape, const float* g, const float* x, float beta,
                                float* dw);
void dense_conv_backward_weight(const ConvShape& shape, const Bf16* g, const Bf16* x, float beta,
                                float* dw);

}  // namespace weft
