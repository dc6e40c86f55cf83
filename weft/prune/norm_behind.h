// The batch normalisation behind a convolution, in a checkpoint that does not say what follows
// what.
//
//   y = γ (W x − mean) / √(variance + ε) + β        γ / √(variance + ε) is folded into W, row by
//   row
//
// It is looked for under the names that people use,
//
//   conv1 ─► bn1, norm1     conv ─► bn, norm     0 ─► 1 (of a sequence)     stem ─► norm
//   shortcut ─► shortcut_norm, shortcut_bn
//
// and then held against what the layer puts out: names alone would take the normalisation of a
// pre-activation network, which stands before its convolution, for the one behind it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/prune/gram.h"

namespace weft {

struct NormBehind {
  std::string name;
  ShardedTensor mean, variance;        // running, [outs]
  std::optional<ShardedTensor> gamma;  // [outs]
};

std::optional<NormBehind> norm_behind(const Checkpoint& checkpoint, const std::string& layer,
                                      int64_t outs);

// Whether running statistics are those of W x. weights: [mean.size(), inputs.cols]; the mean of the
// inputs must be known.
bool normalises(const std::vector<double>& mean, const std::vector<double>& variance,
                const std::vector<double>& weights, const Gram& inputs);

}  // namespace weft
