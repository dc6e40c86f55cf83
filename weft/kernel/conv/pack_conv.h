// PackedConv: the sparse operand of a convolution, one packed matrix per group of channels, each
// with its depth in order of tap.
//
//   W   [group_outs, taps * group_ins]        Wᵀ  [taps * group_ins, group_outs]
//   G   [group_outs, images * positions], its groups restart with every image
//
// Panel packs (pack/packed_matrix.h), which the caller owns.
#pragma once

#include <optional>
#include <vector>

#include "weft/kernel/conv/conv_shape.h"
#include "weft/pack/pack.h"

namespace weft {

using PackedConv = std::vector<PackedMatrix>;

// weights: [outs, group_ins, kernel_h, kernel_w]; mask: [outs, group_ins * taps], as stored.
// `segment` of the options is set here. The rows of Wᵀ that share are inputs of one tap; if blocks
// of them do not fit a tap, rows are packed as if none shared.
PackedConv pack_conv(const float* weights, const Mask& mask, const ConvShape& shape,
                     const PanelOptions& options);
PackedConv pack_conv_transposed(const float* weights, const Mask& mask, const ConvShape& shape,
                                const PanelOptions& options);
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
