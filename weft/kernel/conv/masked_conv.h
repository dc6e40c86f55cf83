// The gradient of the weights of a convolution, only where a mask keeps it.
//
//   dw[o, i, tap] = Σ_t g[o, t] · B[i, tap, t] + beta · dw[o, i, tap]    where the mask keeps it
//   dw[o, i, tap] = beta · dw[o, i, tap]                                 elsewhere
//
// t are the output positions of all images, B is what the taps see of x (gather.h); the mask is
// that of the weights [outs, group_ins * taps], as stored.
//
//              positions, in stripes ──►
//   B, a block of channels   ▓▓▓▓▓▓▓▓    A panel in L1, gathered once, and all rows of g with it:
//      at one tap            ▓▓▓▓▓▓▓▓    a dot product per kept entry (masked/masked_rows.h)
//   g                        ▓▓▓▓▓▓▓▓    a copy, whose rows are next to each other: in place, a row on
//                                        another page each, 3 x 3 with 64 channels at 56 x 56 took
//                                        10 % longer on a Zen 4
//
// Stripes are fixed, and so are chunks of them, whose sums are added in order: the result does not
// depend on threads or the length of vectors, only on whether the CPU has fused multiply-add. What the
// mask does not keep is not computed: a NaN of x reaches only what is kept; one of g reaches all that
// is kept of its output, even where a tap sees padding there.
//
// Cost: 2 · images · positions · kept flops, bound by loads; for every 256 outputs B is gathered once.
// The calling thread keeps at most 1 MB of sums or those of one chunk, a float per kept entry; every
// thread a panel and a stripe of g.
//
// Test: tests/kernel/masked/masked_conv_test.cpp. Benchmark: `weft bench conv --op bwd_w_masked`.
#pragma once

#include "weft/core/bf16.h"
#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/masked/kept_entries.h"

namespace weft {

// g: [images, outs, positions], x: [images, ins, height, width], dw: [outs, group_ins, taps]. beta
// is 0 (dw is only written) or 1.
void masked_conv_backward_weight(const ConvShape& shape, const float* g, const float* x,
                                 const KeptEntries& kept, float beta, float* dw);
// bf16 operands are expanded to fp32, into memory that the calling thread keeps.
void masked_conv_backward_weight(const ConvShape& shape, const Bf16* g, const Bf16* x,
                                 const KeptEntries& kept, float beta, float* dw);

}  // namespace weft
