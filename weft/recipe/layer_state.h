// LayerState: everything that a recipe holds for one layer, apart from the weights themselves and
// the scores that an optimiser moves. It is saved with the model, so that a run continues to the
// bit.
//
//   bring_up_to_date(input, state)     after an optimiser step: what follows the weights at every
//                                      step (masks with an interval of 1, the removal of lbc)
//   refresh(input, state)              before the first training pass of a step: what is due at that
//                                      step (the dense phase and its end, row orders, permutations,
//                                      masks with a longer interval)
//   forward_values(input, state, out)  W̃ itself
//
// Each is a pure function of the weights, the scores and the state. Once training has begun,
// evaluation and export call neither, so what they use is what was trained: a mask that would be
// found at step 40 is found when a 41st step is taken, and not if 40 was the last. The same holds
// for the phase: at the very step where the dense tail begins, or the dense head ends, an
// evaluation still shows the phase before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/rng.h"
#include "weft/core/weight_shape.h"
#include "weft/recipe/recipe.h"

namespace weft {

struct LayerState {
  bool begun = false;     // false: the weights may still change before the first product
  int64_t step = 0;       // optimiser steps taken
  int64_t refreshed = 0;  // the step of the last refresh
  int64_t call = 0;       // forward passes of this step with gradients: each draws its own sample
  uint64_t seed = 0;      // of the run
  int64_t layer = 0;      // number of the layer in the model, for its random numbers
  Mask forward;           // no rows: the operand is dense
  Mask backward;          // no rows: the same as forward
  std::vector<int64_t> permutation;  // of outputs, for the backward mask
  std::vector<int64_t> row_order;    // by which rows share (mask/row_order.h); empty: not permuted
  double beta = 1.0;                 // of the soft threshold
  bool scaled = false;               // beta has been computed, and is frozen
  Mask alive;                        // of lbc, [cells * groups, candidates]

  bool sparse() const { return forward.rows() > 0; }
};

// What a part may look at.
struct LayerInput {
  const float* weights = nullptr;  // [outs, cols]
  WeightShape shape;
  Pattern pattern{1, 1};
  const Recipe* recipe = nullptr;
  int64_t total_steps = 0;        // 0: not known
  std::span<const float> scores;  // of lbc
  // The weights are not what an optimiser made of those before: masks by magnitude are found again.
  bool replaced = false;
};

// Tells the uses of random numbers apart. The numbers are a function of the run's seed, the layer
// and the step.
enum class RandomUse : uint64_t { kPermutation = 1, kRowOrder = 2 };
Rng rng_for(RandomUse use, const LayerState& state);

// Both throw UnusableWeightError (mask/solver.h) if they have to find a mask and a weight is NaN or
// infinite, Error if a score is.
//
// The first of them finds everything, whichever it is: there is nothing stored to use.
void bring_up_to_date(const LayerInput& input, LayerState& state);
// What was due at a step without a training pass is made up for.
void refresh(const LayerInput& input, LayerState& state);
// Whether a refresh at state.step does anything. Looks at no weight.
bool is_refresh_due(const LayerInput& input, const LayerState& state);

// The forward operand, [outs, cols], zero outside the mask. Only for a sparse state.
void forward_values(const LayerInput& input, const LayerState& state, float* out);
// Whether the forward operand is the weights under the mask, so that no values are needed.
bool values_are_weights(const Recipe& recipe);

}  // namespace weft
