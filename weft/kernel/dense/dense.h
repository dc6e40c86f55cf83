// The dense products of a linear layer: through oneDNN's sgemm, or, forward with few tokens, a loop
// of weft's own (dense_small_batch.h).
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
// product of oneDNN, or some of parts of its depth, or one loop, on one thread: so the result does
// not depend on the number of threads, as that of oneDNN's own threads does. It does depend on the
// instruction set, in the last bits.
//
// bf16 operands: their products are exact in fp32, and so is how sums are kept; y and dx are
// rounded to the nearest bf16 once, at the end; dw is fp32. Operands are expanded 1024 tokens at a
// time, w as a whole, into memory that the calling thread keeps.
//
// Cost: 2·tokens·ins·outs flops at the speed of oneDNN's sgemm. Allocates at most 1.2 MB per thread
// (or a row of a block, if that is more) besides what oneDNN does. Test: tests/kernel/dense. Benchmark:
// `weft bench gemm`, where it is the peer "weft".
#pragma once

#include <string>

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"

namespace weft {

void dense_forward(MatrixView<const float> x, MatrixView<const float> w,
                   const float* bias,  // [outs], or null for none
                   float beta, MatrixView<float> y);
void dense_forward(MatrixView<const Bf16> x, MatrixView<const Bf16> w, const float* bias,
                   float beta, MatrixView<Bf16> y);

void dense_backward_data(MatrixView<const float> g, MatrixView<const float> w, float beta,
                         MatrixView<float> dx);
void dense_backward_data(MatrixView<const Bf16> g, MatrixView<const Bf16> w, float beta,
                         MatrixView<Bf16> dx);

void dense_backward_weight(MatrixView<const float> g, MatrixView<const float> x, float beta,
                           MatrixView<float> dw);
void dense_backward_weight(MatrixView<const Bf16> g, MatrixView<const Bf16> x, float beta,
                           MatrixView<float> dw);

// The instruction set of oneDNN's products: the one that weft ran on when they were first used,
// because oneDNN can be told only once per process. sse4 is the least.
std::string dense_isa();

}  // namespace weft
