// Seconds that it takes to convert one layer, by method.
//
// Weights are Gaussian. Inputs are strongly correlated (the spectrum of their covariance falls as
// 1 / i) and have a mean, as after a ReLU: hard for least squares, easy for pruning. The
// result is checked before it counts: one that breaks its pattern, or an error that grew where the
// method says it cannot, is an Error and no figure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/prune/convert_layer.h"

namespace weft::bench {

struct LayerSize {
  int64_t outs = 0, ins = 0;
};

struct ConvertOptions {
  std::vector<LayerSize> layers;
  std::vector<Method> methods;
  std::vector<Pattern> patterns;
  bool transposable = false;
  int64_t samples = 8192;
  uint64_t seed = 1;
};

struct ConvertRecord {
  std::string method;
  Pattern pattern{2, 4};
  LayerSize layer;
  double gram_seconds = 0;  // to add the samples up; the same for all methods of a layer
  double seconds = 0;       // of the conversion
  double error_before = 0, error_after = 0;
  int64_t steps = 0;  // of adaprune's slowest row
};

std::vector<ConvertRecord> bench_convert(const ConvertOptions& options,
                                         const std::function<void(double fraction)>& progress);

}  // namespace weft::bench
