// The dense forward product with few tokens, where the time goes into reading the weights: the peer
// of stream_forward (stream/stream.h) for weights that are not sparse.
//
//   y [tokens, outs] = x [tokens, ins] * wᵀ + bias + beta * y        w: [outs, ins], as stored
//
// dense_forward (dense.h) calls it where it is faster than sgemm, and has checked sizes, strides
// and beta. Weights are read from memory once, whatever the number of tokens. What a token gets
// depends neither on the tokens that come with it nor on the number of threads, but in the last
// bits on the instruction set. Allocates nothing.
#pragma once

#include "weft/core/matrix_view.h"

namespace weft {

// Floats from one row of w to the next, up to which rows are prefetched: from memory it is then the
// faster one by far.
inline constexpr int64_t kShortRow = 512;

void dense_forward_small_batch(MatrixView<const float> x, MatrixView<const float> w,
                               const float* bias,  // [outs], or null for none
                               float beta, MatrixView<float> y);

}  // namespace weft
