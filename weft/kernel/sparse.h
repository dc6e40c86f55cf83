// The three products of a linear layer with a sparse operand. Activations are row-major, as they
// lie.
//
//   forward          y  [tokens, outs] = x [tokens, ins] * Wᵀ + bias + beta * y
//   backward, data   dx [tokens, ins]  = g [tokens, outs] * W       + beta * dx
//   backward, weight dw [outs, ins]    = gᵀ * x [tokens, ins]       + beta * dw
//
// The sparse operand is packed so that its depth is what the product sums over: W [outs, ins], Wᵀ
// [ins, outs] and Gᵀ [outs, tokens]. beta is 0 (the output is not read) or 1.
//
// What a mask does not keep takes no part: a NaN or infinity of x reaches the outputs that keep a
// weight for it, and no others.
#pragma once

#include "weft/core/matrix_view.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// w: [outs, ins], in panel layout, or in stream layout for few tokens; bias: [outs] or null
void sparse_forward(MatrixView<const float> x, const PackedMatrix& w, const float* bias, float beta,
                    MatrixView<float> y);
// w_transposed: [ins, outs]
void sparse_backward_data(MatrixView<const float> g, const PackedMatrix& w_transposed, float beta,
                          MatrixView<float> dx);
// g_transposed: [outs, tokens]
void sparse_backward_weight(const PackedMatrix& g_transposed, MatrixView<const float> x, float beta,
                            MatrixView<float> dw);

// Which panels to pack for, on the instruction set in use: rows of which about `density` is kept,
// `share` rows with one pattern, whole groups.
PackTile tile_for(double density, int share, int group);
inline PackTile tile_for(const Pattern& pattern) {
  return tile_for(static_cast<double>(pattern.keep()) / pattern.group(), pattern.share(),
                  pattern.group());
}

}  // namespace weft
