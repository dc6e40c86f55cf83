// The batch normalisation after a convolution, in a checkpoint that does not record the order of
// layers.
//
//   y = γ (W x − mean) / √(variance + ε) + β        γ / √(variance + ε) is folded into W, row by
//   row
//
// It is searched under the common names,
//
//   conv1 ─► bn1, norm1     conv ─► bn, norm     0 ─► 1 (of a sequence)     stem ─► norm
//   shortcut ─► shortcut_norm, shortcut_bn
//
// and then compared with the output of the layer: by name alone, the normalisation before a
// convolution of a pre-activation network would be taken for the one after it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/prune/gram.h"

namespace weft {

struct NormAfter {
  std::string name;
  ShardedTensor mean, variance;        // running, [outs]
  std::optional<ShardedTensor> gamma;  // [outs]
};

std::optional<NormAfter> norm_after(const Checkpoint& checkpoint, const std::string& layer,
                                    int64_t outs);

// Whether running statistics are those of W x. weights: [mean.size(), inputs.cols]; the mean of the
// inputs must be known.
bool normalises(const std::vector<double>& mean, const std::vector<double>& variance,
                const std::vector<double>& weights, const Gram& inputs);

}  // namespace weft
