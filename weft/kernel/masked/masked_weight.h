// The gradient of the weights, only where a mask keeps it.
//
//   dw[o, i] = Σ_t g[t, o] · x[t, i] + beta · dw[o, i]    where the mask keeps (o, i)
//   dw[o, i] = beta · dw[o, i]                            elsewhere
//
//   g: [tokens, outs]   x: [tokens, ins]   dw: [outs, ins]
//
// For recipes that mask this gradient anyway (static masks, LBC). Unlike the other products it is
// not a sparse matrix times a dense one: both operands are dense, and the result is sparse. So each
// kept entry is a dot product along the tokens (masked_rows.h). g and x are transposed, some tokens
// at a time.
//
// The sums of panels are added in order of the tokens: the result does not depend on threads or the
// length of vectors, only on whether the CPU has fused multiply-add. What the mask does not keep is
// not computed: a NaN of x or g reaches exactly the kept entries of its column or row.
//
// Cost: 2 · tokens · kept flops, bound by loads, and transposing g and x. The calling thread keeps
// a float per kept entry, and 4 MB or one panel of xᵀ at a time. Measured: docs/speed.md.
//
// Test: tests/kernel/masked. Benchmark: `weft bench gemm --op bwd_w_masked`.
#pragma once

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"
#include "weft/kernel/masked/kept_entries.h"

namespace weft {

// beta is 0 (dw is only written) or 1.
void masked_backward_weight(MatrixView<const float> g, MatrixView<const float> x,
                            const KeptEntries& kept, float beta, MatrixView<float> dw);
// bf16 operands are expanded to fp32, into memory that the calling thread keeps.
void masked_backward_weight(MatrixView<const Bf16> g, MatrixView<const Bf16> x,
                            const KeptEntries& kept, float beta, MatrixView<float> dw);

}  // namespace weft
