// Merging: a delta is added to weights, and they have their pattern again.
//
//   W' = round(m (W + D))       D: delta.h; m: a mask of the pattern, or 1 if there is none
//
//   MergeMask::kBase   zeros of W stay zero. Blocks of pattern.block() rows that obey the pattern
//                      keep the mask they have; in others m = find_mask(W + D where W is not zero)
//   MergeMask::kNew    m = find_mask(W + D)
//
// Sums are in double; rounded is once, to the type of W, to the nearest, ties to even. The result
// does not depend on the number of threads. Memory: a band of rows, in double, and the A of a LoRA
// pair.
#pragma once

#include <functional>
#include <optional>

#include "weft/checkpoint/stored_weight.h"
#include "weft/mask/retained.h"
#include "weft/prune/delta.h"

namespace weft {

enum class MergeMask { kBase, kNew };

struct MergeTask {
  const Checkpoint& base;
  const Checkpoint& deltas;
  const ShardedTensor& tensor;  // of the base
  const Delta& delta;
  std::optional<Promise> promise;  // the pattern to restore; nullopt: the delta is merely added
  MergeMask mask = MergeMask::kBase;

  // Bands are of [outs, ins] where the promise is of a weight that is stored otherwise.
  StoredWeight weight() const { return {tensor, promise && promise->transposed}; }
};

struct MergeFigures {
  double delta_squares = 0;  // ||D||^2
  double lost_squares = 0;   // ||(1 - m) D||^2
  Retained magnitude;        // of m (W + D), before it is rounded
  int64_t changed = 0;       // positions that are zero in one of W and W', and not in the other
  double seconds = 0;        // reading included

  double delta_lost() const { return delta_squares > 0 ? lost_squares / delta_squares : 0.0; }
  MergeFigures& operator+=(const MergeFigures& other);
};

// Hands out W' in bands of rows of task.weight(), as for_each_band does; write_band
// (stored_weight.h) knows where they belong. Throws Error that names file, tensor and index of an
// element that is not finite, or of a sum that the type of W does not hold.
MergeFigures merge_tensor(const MergeTask& task, const std::function<void(const Band&)>& write);

}  // namespace weft
