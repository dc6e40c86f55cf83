// Which weights of a layer stay, judged at once: by magnitude, or by what they do to the output.
//
//   magnitude   |w|            Hubara et al. 2021
//   wanda       |w| ‖x_c‖      Sun et al. 2023: the norm of the input that the weight meets
//
// (sparsegpt judges while it goes on: sparsegpt.h.) The mask is the best N:M mask of these scores,
// by the solver that is right for the pattern; weights that are zero are never part of it. Weights
// that obey the pattern all stay: not every sparse transposable mask is part of a full one, which
// is what solvers find.
#pragma once

#include <span>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"

namespace weft {

struct SupportOptions {
  Pattern pattern{2, 4};
  bool transposable = false;
  std::span<const double> row_scale;  // [outs] of the batch normalisation after it; empty: 1
  std::span<const double> col_scale;  // [cols]; empty: 1. Wanda's norms
};

// weights: [shape.outs, shape.cols()], finite.
Mask find_support(const double* weights, const WeightShape& shape, const SupportOptions& options);

// Whether there is nothing to prune.
bool obeys(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern,
           bool transposable);

// a and b, bit by bit.
Mask intersection(const Mask& a, const Mask& b);
Mask nonzeros(const double* weights, int64_t rows, int64_t cols);

}  // namespace weft
