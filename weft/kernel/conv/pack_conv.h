// PackedConv: the sparse operand of a convolution, a packed matrix per group of channels.
//
//   W   [group_outs, group_ins * taps]    as stored
//   Wᵀ  [group_ins, group_outs * taps]    a matrix per phase (phases.h) and group, with the taps of
//                                         the phase; phase by phase
//   G   [group_outs, images * positions], its groups restart with every image
//
// Panel packs (pack/packed_matrix.h), which the caller owns. Inputs of one tap are not adjacent in
// depth, so packs of weights are ragged; that the mask is N:M is checked before.
#pragma once

#include <optional>
#include <vector>

#include "weft/kernel/conv/conv_shape.h"
#include "weft/pack/pack.h"

namespace weft {

using PackedConv = std::vector<PackedMatrix>;

// weights: [outs, group_ins, kernel_h, kernel_w]; mask: [outs, group_ins * taps], as stored, N:M
// along inputs, or, for Wᵀ, along outputs, unless `ragged`. The rows of Wᵀ that share are inputs.
// `reuse`, the pack of an earlier step, lends its memory.
PackedConv pack_conv(const float* weights, const Mask& mask, const ConvShape& shape,
                     const PanelOptions& options, PackedConv reuse = {});
PackedConv pack_conv_transposed(const float* weights, const Mask& mask, const ConvShape& shape,
                                const PanelOptions& options, PackedConv reuse = {});
// g: [images, outs, positions]; mask: [outs, images * positions].
PackedConv pack_conv_gradient(const float* g, const Mask& mask, const ConvShape& shape,
                              const PanelOptions& options);

// G sampled while it is packed (pack/pack.h, estimate/mvue.h), its groups of tokens restart with
// every image. The token group of a position of an image is options.first_group + image *
// ceil(positions / group) + position / group; cells count on from one group of channels to the
// next. With `rounding` all kept values have one scale. `reuse`, the pack of an earlier step, lends
// its memory.
PackedConv pack_conv_sampled(const float* g, const ConvShape& shape, const SampleOptions& options,
                             PackTile tile, std::optional<Fp8> rounding = {},
                             PackedConv reuse = {});
// The scales of that sample, in the layout of g: both are [images, outs, positions].
void sample_conv_scales(const float* g, const ConvShape& shape, const SampleOptions& options,
                        float* scales);

}  // namespace weft
