// The three products of a linear layer in bf16 arithmetic, on a tile unit (tile_unit.h; Error
// without one): from an operand that is packed in tiles, and dense.
//
//   forward          y  [tokens, outs] = x [tokens, ins] * Wᵀ + bias + beta * y
//   backward, data   dx [tokens, ins]  = g [tokens, outs] * W       + beta * dx
//   backward, weight dw [outs, ins]    = gᵀ * x [tokens, ins]       + beta * dw
//
// Activations are bf16, row-major. Sums (of bias and beta * y too) are fp32, and y and dx
// are rounded to the nearest bf16 once, at the end; dw is fp32. beta is 0 (the output is not read)
// or 1. A sparse operand is packed as for panels (panel/panel.h), and what its mask does not keep
// takes no part, either.
//
// Cost: tile_product.h. Test: tests/kernel/tile. Benchmark: `weft bench gemm --precision bf16`.
#pragma once

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"
#include "weft/pack/dense_tiles.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// w: [outs, ins]; bias: [outs] or null
void tile_forward(MatrixView<const Bf16> x, const PackedMatrix& w, const float* bias, float beta,
                  MatrixView<Bf16> y);
// w_transposed: [ins, outs]
void tile_backward_data(MatrixView<const Bf16> g, const PackedMatrix& w_transposed, float beta,
                        MatrixView<Bf16> dx);
// g_transposed: [outs, tokens]
void tile_backward_weight(const PackedMatrix& g_transposed, MatrixView<const Bf16> x, float beta,
                          MatrixView<float> dw);

// Dense. The weights are packed once: forward `w.pack(W, true)`, backward `w.pack(W, false)`. The
// gradient of the weights packs both operands in every call.
void dense_tile_forward(MatrixView<const Bf16> x, const DenseTiles& w, const float* bias,
                        float beta, MatrixView<Bf16> y);
void dense_tile_backward_data(MatrixView<const Bf16> g, const DenseTiles& w, float beta,
                              MatrixView<Bf16> dx);
void dense_tile_backward_weight(MatrixView<const Bf16> g, MatrixView<const Bf16> x, float beta,
                                MatrixView<float> dw);

}  // namespace weft
