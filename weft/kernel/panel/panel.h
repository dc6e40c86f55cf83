// The three products of a linear layer with an operand that is packed in panels. Activations are
// row-major.
//
//   forward          y  [tokens, outs] = x [tokens, ins] * Wᵀ + bias + beta * y
//   backward, data   dx [tokens, ins]  = g [tokens, outs] * W       + beta * dx
//   backward, weight dw [outs, ins]    = gᵀ * x [tokens, ins]       + beta * dw
//
// The sparse operand is packed so that its depth is what the product sums over: W [outs, ins], Wᵀ
// [ins, outs] and Gᵀ [outs, tokens]. beta is 0 (the output is not read) or 1.
//
// Activations are fp32 or bf16; bf16 is multiplied in fp32 arithmetic: products of two bf16 numbers
// are exact in it. Sums (of bias and beta * y too) are fp32, and y and dx are rounded to the
// nearest bf16 once, at the end; dw is fp32. The values of the sparse operand are what they were
// packed as.
//
// What a mask does not keep takes no part: a NaN or infinity of x reaches the outputs that keep a
// weight for it, and no others.
//
// Cost: panel_product.h. Test: tests/kernel/panel. Benchmark: `weft bench gemm`.
#pragma once

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// w: [outs, ins]; bias: [outs] or null
void panel_forward(MatrixView<const float> x, const PackedMatrix& w, const float* bias, float beta,
                   MatrixView<float> y);
void panel_forward(MatrixView<const Bf16> x, const PackedMatrix& w, const float* bias, float beta,
                   MatrixView<Bf16> y);
// w_transposed: [ins, outs]
void panel_backward_data(MatrixView<const float> g, const PackedMatrix& w_transposed, float beta,
                         MatrixView<float> dx);
void panel_backward_data(MatrixView<const Bf16> g, const PackedMatrix& w_transposed, float beta,
                         MatrixView<Bf16> dx);
// g_transposed: [outs, tokens]
void panel_backward_weight(const PackedMatrix& g_transposed, MatrixView<const float> x, float beta,
                           MatrixView<float> dw);
void panel_backward_weight(const PackedMatrix& g_transposed, MatrixView<const Bf16> x, float beta,
                           MatrixView<float> dw);

}  // namespace weft
