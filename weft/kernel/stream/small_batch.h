// The forward product with few tokens, where the time goes into reading the weights.
//
//   y [tokens, rows] = x [tokens, depth] * Aᵀ + bias + beta * y        A in stream layout
//
// Weights are read from memory once, whatever the number of tokens. Any number is right.
#pragma once

#include "weft/core/matrix_view.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// With more, panels are faster; from about twelve on they may be.
inline constexpr int64_t kFewTokens = 16;

// Sizes as sparse_forward has checked them.
void multiply_stream(MatrixView<const float> x, const PackedMatrix& a, const float* bias,
                     float beta, MatrixView<float> y);

}  // namespace weft
