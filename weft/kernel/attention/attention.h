// Multi-head attention, from the fused projection to the heads side by side, and back.
//
//   s = q kᵀ / √head_width      p = softmax(s), of the tokens up to its own if causal
//   out = p v
//
//   qkv: [batch, tokens, 3 · width]    q, then k, then v, each [heads, head_width]
//   out: [batch, tokens, width]        [heads, head_width]
//
// All is row-major, without gaps and the caller's; a result must not overlap an operand. batch and
// tokens may be 0.
//
// Work is split over batch and heads, and in each over blocks of 64 rows whatever the threads: so
// the result does not depend on their number. It does depend on the instruction set, in the last
// bits. NaN and infinity are not hidden: they reach every row that attends to them, and under a
// causal mask may reach rows before them in the same block (0 · NaN).
//
// Cost: 4 · batch · tokens² · width flops forward and 10 backward, of which a causal mask leaves
// (1 + 64 / tokens) / 2. The backward pass has the probabilities from q, k and two numbers per row,
// not from memory. Keeps 0.5 KB · (tokens + 16) per thread.
//
// Test: tests/kernel/attention. Benchmark: `weft bench attention`.
#pragma once

#include <cstdint>

namespace weft {

struct AttentionShape {
  int64_t batch = 0;
  int64_t tokens = 0;
  int64_t heads = 1;
  int64_t width = 0;  // of all heads together, a multiple of them
  bool causal = false;

  int64_t head_width() const { return width / heads; }
};

void attention_forward(const AttentionShape& shape, const float* qkv, float* out,
                       float* stats);  // [2, batch, heads, tokens], for the backward pass

void attention_backward(const AttentionShape& shape, const float* qkv, const float* stats,
                        const float* d_out,  // like out
                        float* d_qkv);       // like qkv

}  // namespace weft
