// prune_weight: a weight of a checkpoint, pruned to N:M in bands of rows.
//
//   W' = m W        m = find_mask(solver, W, pattern), band by band
//
// The one place where weights of a file pass through a mask solver by magnitude: mask_checkpoint,
// the conversion by magnitude (conversion.h) and packing by magnitude (pack_checkpoint.h) use it.
// Bands are multiples of pattern.block() rows, so the mask is that of the whole weight. Kept
// weights stay bit for bit. The result does not depend on the number of threads.
//
// Memory: a band of about 32 MB of the file, in its own type and as float or double; with a row
// order, the whole weight.
#pragma once

#include <functional>
#include <vector>

#include "weft/checkpoint/stored_weight.h"
#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"

namespace weft {

struct PruneTask {
  const Checkpoint& checkpoint;
  StoredWeight weight;
  Pattern pattern;
  const Solver& solver;
  bool reorder = false;  // search for an order of rows that retains more (mask/row_order.h)
  // A band that obeys the pattern keeps all its non-zero weights, and no zeros besides: not every
  // sparse transposable mask is part of a full one. The input is then counted, too.
  bool leave_sparse = false;
};

struct PruneFigures {
  int64_t kept = 0;  // positions that the mask keeps
  Retained retained;
  double bound = 0;    // no mask of this kind (and order) retains more
  double seconds = 0;  // of the search for masks and orders
  // With reorder.
  std::vector<int64_t> order;
  Retained unpermuted;  // without the order
  // With leave_sparse, of the weights as they came in.
  int64_t zeros = 0;
  GroupCount groups;

  // The share of the bound that the mask may lack; 0 for an exact solver.
  double gap() const { return bound > retained.kept ? (bound - retained.kept) / bound : 0.0; }
};

// The mask of one band, its share of the figures added. A band that is not the whole weight cannot
// be reordered. Throws Error that names file, tensor and index of a weight that no solver takes.
Mask find_band_mask(const PruneTask& task, const Band& band, PruneFigures& figures);

// Hands out every band, pruned, with its mask; write_band (stored_weight.h) knows where it belongs.
PruneFigures prune_weight(const PruneTask& task,
                          const std::function<void(const Band&, const Mask&)>& write);

}  // namespace weft
