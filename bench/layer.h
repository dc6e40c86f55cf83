// One training step of one linear layer, recipe against dense, with everything that a step needs:
// the mask, packing, the three products, the decay. Without the optimiser, which is the same for
// all.
//
// The dense layer and then all recipes take turns within a round, in one order and in the next
// round in the other, so that a noisy machine hits them alike. Figures are medians over rounds; the
// spread is that of the ratios within rounds. The dense layer runs on weft's dense path, oneDNN.
//
// Work that comes once in many steps (a mask every 16 at 4:8, a permutation every 100) is timed by itself
// and divided by that number: it is in mask_ms and in sparse_ms. A recipe is measured in its sparse
// phase: static and t-sr-ste between their dense head and tail.
//
// The sparse phase of lbc begins with the removal of its subsets, while it keeps more than N:M and
// learns scores. So it is measured at several points of the removal and after it, with the update
// of its scores by AdamW, and its figures are means over the phase: sum of share x time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/step_times.h"
#include "weft/plan/planner.h"

namespace weft::bench {

struct LayerPlanToBench {
  std::vector<LayerShape> shapes;
  std::vector<std::string> recipes;  // as in Recipe::parse
  std::vector<Pattern> patterns;
  PlanMode mode = PlanMode::kAuto;
  int rounds = 5;
};

// A stretch of the sparse phase in which steps are alike.
struct LayerPhase {
  double share = 1.0;    // of the steps of the sparse phase
  double removed = 1.0;  // t / t_f of lbc; 1 or more: the removal is over
  double density = 1.0;  // of the forward operand
  double step_ms = 0.0;  // the median
};

struct LayerRecord {
  std::string recipe;
  Pattern pattern;
  LayerShape shape;
  StepTimes times;  // the rest, other_ms: bias, decay, memory
  // Of lbc, as what follows, after the removal.
  std::string plan;                // "sparse/sparse/dense": fwd, bwd_x, bwd_w
  double retained;                 // Σ |w| that the forward operand keeps, of all
  double backward_kept;            // entries of the forward operand that the backward one has, too
  std::vector<LayerPhase> phases;  // one, or those of lbc
  int rounds = 0;                  // more than planned on a busy machine
};

// A recipe that does not go with a pattern (two-draw sampling at 1:4) is left out there.
std::vector<LayerRecord> bench_layer(const LayerPlanToBench& plan,
                                     const std::function<void(double)>& progress);

}  // namespace weft::bench
