// The forward product with few tokens, where the time goes into reading the weights.
//
//   y [tokens, rows] = x [tokens, depth] * Aᵀ + bias + beta * y        A in stream layout
//
// Weights are read from memory once, whatever the number of tokens. Any number is right. beta is 0 (y
// is not read) or 1. Sums are in order of depth, as those of panels (panel/panel.h), and have the
// same bits. bf16 activations are expanded to fp32, and y is rounded to the nearest bf16 once, at the
// end.
//
// Cost: the bytes of A, and a copy of x per call. Test: tests/kernel/stream. Benchmark: `weft bench
// gemm` with shapes of up to kFewTokens tokens.
#pragma once

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// With more, panels are faster; from about twelve on they may be.
inline constexpr int64_t kFewTokens = 16;

// bias: [rows] or null
void stream_forward(MatrixView<const float> x, const PackedMatrix& a, const float* bias, float beta,
                    MatrixView<float> y);
void stream_forward(MatrixView<const Bf16> x, const PackedMatrix& a, const float* bias, float beta,
                    MatrixView<Bf16> y);

}  // namespace weft
