// Gaussian weights, their masks by magnitude, and what a permutation of the outputs leaves of a mask.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/rng.h"
#include "weft/core/weight_shape.h"
#include "weft/mask/solver.h"

namespace weft::test {

inline std::vector<float> gaussian(int64_t size, uint64_t seed) {
  const Rng rng(seed);
  std::vector<float> values(static_cast<size_t>(size));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rng.normal(i));
  return values;
}

inline Mask top_n(const std::vector<float>& weights, const WeightShape& shape,
                  const Pattern& pattern) {
  return find_mask(solver("magnitude"), weights.data(), shape, pattern);
}

// Σ min(K, keep) and #{K <= keep} over the groups of permuted outputs and all inputs, from the
// bits.
inline std::pair<int64_t, int64_t> counted(const Mask& forward, const Pattern& pattern,
                                           const std::vector<int64_t>& permutation) {
  int64_t kept = 0, eligible = 0;
  for (int64_t c = 0; c < forward.cols(); ++c) {
    for (size_t first = 0; first < permutation.size();
         first += static_cast<size_t>(pattern.group())) {
      const size_t end = std::min(permutation.size(), first + static_cast<size_t>(pattern.group()));
      int held = 0;
      for (size_t p = first; p < end; ++p) held += forward.at(permutation[p], c) ? 1 : 0;
      kept += std::min(held, pattern.keep());
      if (held <= pattern.keep()) ++eligible;
    }
  }
  return {kept, eligible};
}

}  // namespace weft::test
