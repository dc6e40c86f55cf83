// The three products of a convolution with a sparse operand (pack_conv.h): the loop of the linear
// layer (panel_product.h), with sources and sinks for planes. Activations are NCHW.
//
//   forward           y  = conv(x, W) + bias + beta * y
//   backward, data    dx = conv_transpose(g, W)                           + beta * dx
//   backward, weight  dw [outs, group_ins, kernel_h, kernel_w] = Σ g with x + beta * dw
//
// beta is 0 (the output is not read) or 1. Cost: as the linear product of [images * positions]
// tokens; backward-weight holds a block of channels of an image or a few per thread, height * width
// * tile.width floats each. bf16 activations are expanded to fp32, and results rounded to the nearest bf16 once, at
// the end; the copies are as large as the tensors, in memory that the calling thread keeps.
//
// Test: tests/kernel/conv/conv_test.cpp. Benchmark: `weft bench conv`.
#pragma once

#include "weft/core/bf16.h"
#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/conv/pack_conv.h"

namespace weft {

void sparse_conv_forward(const ConvShape& shape, const float* x, const PackedConv& w,
                         const float* bias, float beta, float* y);
void sparse_conv_forward(const ConvShape& shape, const Bf16* x, const PackedConv& w,
                         const float* bias, float beta, Bf16* y);
void sparse_conv_backward_data(const ConvShape& shape, const float* g,
                               const PackedConv& w_transposed, float beta, float* dx);
void sparse_conv_backward_data(const ConvShape& shape, const Bf16* g,
                               const PackedConv& w_transposed, float beta, Bf16* dx);
void sparse_conv_backward_weight(const ConvShape& shape, const PackedConv& g, const float* x,
                                 float beta, float* dw);
void sparse_conv_backward_weight(const ConvShape& shape, const PackedConv& g, const Bf16* x,
                                 float beta, float* dw);

}  // namespace weft
