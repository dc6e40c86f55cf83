// How wide and deep a panel of the dense operand is.
//
// Width: a few vectors, whose sums stay in registers (panel_kernel.cpp). Depth: what
// then fits L1, beside the lines of the pack and of C that pass through. A sparser matrix has fewer
// entries per row of a panel to pay for loading and storing a row of C, so its panels are deeper
// and narrower, and may be a little larger than L1 would hold at ease.
#pragma once

#include "weft/core/pattern.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// Which panels to pack for, on the instruction set in use: rows with a share of about `density`
// kept, `share` rows with one pattern, whole groups.
PackTile tile_for(double density, int share, int group);
inline PackTile tile_for(const Pattern& pattern) {
  return tile_for(static_cast<double>(pattern.keep()) / pattern.group(), pattern.share(),
                  pattern.group());
}

// A tile of C, which is written by one panel and read by the next: it must stay in L2, beside the
// panels that are in use and the part of the pack that passes through. A larger one reads each
// panel into L1 less often.
int64_t tile_bytes();

// As tile_for, for the weights of a convolution (conv/pack_conv.h): whole channels of `taps` taps.
PackTile conv_tile_for(double density, int share, int64_t taps);
// For its gradients: stripes are blocks of input channels, about equal ones.
PackTile conv_gradient_tile_for(const Pattern& pattern, int64_t ins);

}  // namespace weft
