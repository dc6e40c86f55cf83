// Whole training steps of one transformer block, or of a residual network, recipe against dense:
// forward, backward, clipping left out, the optimiser (AdamW), masks, packing, sampling. Every
// linear layer of the block is sparse, attention is dense in all; of the residual network
// everything but the stem and the head.
//
// In a round the dense network and then all others take one step each, in one order and in the next
// round in the other. Figures are medians over rounds, the spread is that of the ratios within
// rounds. Masks that come once in many steps are timed by themselves and divided by that number. A
// recipe is measured in its sparse phase; lbc also in the first steps of its removal, which keep
// most, and together they make a whole run.
//
// The same network in plain libtorch, as a user would write it, runs in the same rounds: with the
// default number of threads of libtorch, and with as many as weft has. Before anything is timed,
// the output of every network is checked against it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/step_network.h"
#include "bench/step_times.h"
#include "weft/core/pattern.h"
#include "weft/core/precision.h"
#include "weft/distributed/process_group.h"
#include "weft/plan/planner.h"

namespace weft::bench {

struct StepOptions {
  StepShape shape;
  std::vector<std::string> recipes;
  std::vector<Pattern> patterns;
  PlanMode mode = PlanMode::kAuto;
  int rounds = 4;
  int torch_threads = 1;  // that libtorch starts with
  bool plain = true;      // whether plain libtorch is measured
  // In bf16 the dense network is in bf16 as well, and one in fp32 runs beside; plain libtorch is
  // fp32.
  Precision precision = Precision::kFp32;
};

// Who takes steps.
struct Subject {
  std::string recipe = "dense";
  Pattern pattern{2, 4};
  bool removing = false;  // lbc, while it removes subsets

  std::string name() const { return recipe + (removing ? ", removing" : ""); }
};

struct StepRecord {
  Subject subject;
  StepTimes times;   // the rest, other_ms: attention, norms, GELU, the optimiser
  std::string plan;  // of planned_layer(): "sparse/sparse/dense"
};

struct StepRecords {
  std::vector<StepRecord> records;
  double dense_ms = 0.0;
  std::optional<double> dense_fp32_ms;         // in bf16: the dense network in fp32
  std::optional<double> plain_ms;              // of plain libtorch, as it starts
  std::optional<double> plain_all_threads_ms;  // with the threads that weft has
};

StepRecords bench_step(const StepOptions& options, const std::function<void(double)>& progress);

// Steps of several ranks, each with the whole network and batch of `shape`. In a round, one step each:
// without the others, with gradients summed while the backward pass runs, the same with masked
// gradients whole, and with sums that begin after it.
struct RankStepRecord {
  std::string recipe;
  Pattern pattern{1, 1};
  int64_t kept_bytes = 0, whole_bytes = 0;  // summed per step: what masks keep; everything
  double alone_ms = 0.0, step_ms = 0.0, whole_ms = 0.0, late_ms = 0.0;  // medians
};
RankStepRecord bench_rank_step(const StepOptions& options, const std::string& recipe,
                               const Pattern& pattern, const std::shared_ptr<ProcessGroup>& ranks);

// A few steps, for the memory that they take.
void take_steps(const StepShape& shape, const Subject& subject, PlanMode mode, Precision precision,
                int steps);

}  // namespace weft::bench
