// The three products of a convolution with a sparse operand: the loop of the linear layer, fed by
// im2col. Activations are NCHW.
//
//   forward           y  = conv(x, W) + bias + beta * y
//   backward, data    dx = what of g each input reached, through W       + beta * dx
//   backward, weight  dw [outs, group_ins, kernel_h, kernel_w] = g with x + beta * dw
//
// A PackedConv has one packed matrix per group of channels, each with its depth in order of tap:
//
//   W   [group_outs, taps * group_ins]        Wᵀ  [taps * group_ins, group_outs]
//   G   [group_outs, images * positions], its groups beginning anew with every image
//
// beta is 0 (the output is not read) or 1. Cost: as the linear product of [images * positions]
// tokens; backward-data holds the columns of one image per thread, taps * group_ins * positions
// floats. bf16 activations are expanded to fp32, and results rounded to the nearest bf16 once, at
// the end; the copies are as large as the tensors, in memory that the calling thread keeps.
#pragma once

#include <optional>
#include <vector>

#include "weft/core/bf16.h"
#include "weft/kernel/conv/conv_shape.h"
#include "weft/pack/pack.h"

namespace weft {

using PackedConv = std::vector<PackedMatrix>;

// weights: [outs, group_ins, kernel_h, kernel_w]; mask: [outs, group_ins * taps], as they lie.
// `segment` of the options is set here. The rows of Wᵀ that share are inputs of one tap; if blocks
// of them do not fit a tap, rows are packed as if none shared.
PackedConv pack_conv(const float* weights, const Mask& mask, const ConvShape& shape,
                     const PanelOptions& options);
PackedConv pack_conv_transposed(const float* weights, const Mask& mask, const ConvShape& shape,
                                const PanelOptions& options);
// g: [images, outs, positions]; mask: [outs, images * positions].
PackedConv pack_conv_gradient(const float* g, const Mask& mask, const ConvShape& shape,
                              const PanelOptions& options);

// G sampled while it is packed (pack/pack.h, estimate/mvue.h), its groups of tokens beginning anew
// with every image. The token group of a position of an image is options.first_group + image *
// ceil(positions / group) + position / group; cells count on from one group of channels to the
// next. With `rounding` all kept values have one scale. `reuse`, the pack of an earlier step, lends
// its memory.
PackedConv pack_conv_sampled(const float* g, const ConvShape& shape, const SampleOptions& options,
                             PackTile tile, std::optional<Fp8> rounding = {},
                             PackedConv reuse = {});
// The scales of that sample, where g lies: both are [images, outs, positions].
void sample_conv_scales(const float* g, const ConvShape& shape, const SampleOptions& options,
                        float* scales);

void sparse_conv_forward(const ConvShape& shape, const float* x, const PackedConv& w,
                         const float* bias, float beta, float* y);
void sparse_conv_forward(const ConvShape& shape, const Bf16* x, const PackedConv& w,
                         const float* bias, float beta, Bf16* y);
void sparse_conv_backward_data(const ConvShape& shape, const float* g,
                               const PackedConv& w_transposed, float beta, float* dx);
void sparse_conv_backward_data(const ConvShape& shape, const Bf16* g,
                               const PackedConv& w_transposed, float beta, Bf16* dx);
void sparse_conv_backward_weight(const ConvShape& shape, const PackedConv& g, const float* x,
                                 float beta, float* dw);
void sparse_conv_backward_weight(const ConvShape& shape, const PackedConv& g, const Bf16* x,
                                 float beta, float* dw);

}  // namespace weft
