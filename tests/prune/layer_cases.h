// Patterns and layers with inputs, for tests of whole methods of weft/prune.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/prune/matrices.h"

namespace weft {

struct PatternCase {
  Pattern pattern;
  bool transposable;

  std::string str() const { return pattern.str() + (transposable ? " transposable" : ""); }
};

inline const std::vector<PatternCase> kCases = {{{2, 4}, false}, {{4, 8}, false},
                                                {{1, 4}, false}, {{2, 4, 2}, false},
                                                {{2, 4}, true},  {{1, 4, 2}, true}};

struct LayerCase {
  WeightShape shape;
  Matrix w;
  Matrix x;  // samples
  Gram gram;
};

inline LayerCase draw_layer(const WeightShape& shape, uint64_t stream, int64_t samples = 150) {
  Matrix x = draw_inputs(samples, shape.cols(), stream + 1);
  const Gram gram = naive_gram(x);
  return {shape, draw_matrix(Kind::kGaussian, shape.outs, shape.cols(), stream), std::move(x),
          gram};
}

}  // namespace weft
