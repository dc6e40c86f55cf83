// The forward product with few tokens, where the time goes into reading the weights.
//
//   y [tokens, rows] = x [tokens, depth] * Aᵀ + bias + beta * y        A in stream layout
//
// Weights are read from memory once, whatever the number of tokens. Any number is right; from about
// sixteen on the panel layout is faster.
#pragma once

#include "weft/core/matrix_view.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// Sizes as sparse_forward has checked them.
void multiply_stream(MatrixView<const float> x, const PackedMatrix& a, const float* bias,
                     float beta, MatrixView<float> y);

}  // namespace weft
