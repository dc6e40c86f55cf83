// The dense products of a linear layer, through oneDNN's sgemm.
//
//   forward          y  = x wᵀ + bias + beta·y      x: [tokens, ins]    w: [outs, ins]
//   backward data    dx = g w         + beta·dx     g: [tokens, outs]
//   backward weight  dw = gᵀ x        + beta·dw
//
// All matrices are row-major and the caller's; the result must not overlap an operand. beta is 0 or
// 1; with 0 the result is only written, so it may hold NaN before. Any size may be 0: an empty
// reduction leaves bias + beta·y.
//
// The result is cut into blocks, a function of the shape and strides alone, and each block is one
// product on one thread: so the result does not depend on the number of threads, as that of
// oneDNN's own threads does. It does depend on the instruction set, in the last bits.
//
// Cost: 2·tokens·ins·outs flops at the speed of oneDNN's sgemm. Allocates at most 0.6 MB per thread
// (or a row of a block, if that is more) besides what oneDNN does.
#pragma once

#include <string>

#include "weft/core/matrix_view.h"

namespace weft {

void dense_forward(MatrixView<const float> x, MatrixView<const float> w,
                   const float* bias,  // [outs], or null for none
                   float beta, MatrixView<float> y);

void dense_backward_data(MatrixView<const float> g, MatrixView<const float> w, float beta,
                         MatrixView<float> dx);

void dense_backward_weight(MatrixView<const float> g, MatrixView<const float> x, float beta,
                           MatrixView<float> dw);

// The instruction set of the dense path: the one that weft ran on when it was first used, because
// oneDNN can be told only once per process. sse4 is the least.
std::string dense_isa();

}  // namespace weft
