// Whole training steps of one transformer block, recipe against dense: forward, backward, clipping
// left out, the optimiser (AdamW), masks, packing, sampling. Every linear layer of the block is
// sparse; attention is dense in all.
//
// In a round the dense block and then all others take one step each, in one order and in the next
// round in the other. Figures are medians over rounds, the spread is that of the ratios within
// rounds. Masks that come once in many steps are timed by themselves and divided by that number. A
// recipe is measured in its sparse phase, lbc after its removal (bench layer has all of it).
//
// The same block in plain libtorch, as a user would write it, runs in the same rounds: with the
// default number of threads of libtorch, and with as many as weft has. Before anything is timed,
// the output of every block is checked against it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/block_shape.h"
#include "bench/step_times.h"
#include "weft/core/pattern.h"
#include "weft/core/precision.h"
#include "weft/distributed/process_group.h"
#include "weft/plan/planner.h"

namespace weft::bench {

struct StepOptions {
  BlockShape shape;
  std::vector<std::string> recipes;
  std::vector<Pattern> patterns;
  PlanMode mode = PlanMode::kAuto;
  int rounds = 4;
  int torch_threads = 1;  // that libtorch starts with
  bool plain = true;      // whether plain libtorch is measured
  // In bf16 the dense block is in bf16 as well, and one in fp32 runs beside; plain libtorch is
  // fp32.
  Precision precision = Precision::kFp32;
};

struct StepRecord {
  std::string recipe;
  Pattern pattern;
  StepTimes times;   // the rest, other_ms: attention, norms, GELU, the optimiser
  std::string plan;  // of fc1: "sparse/sparse/dense"
};

struct StepRecords {
  std::vector<StepRecord> records;
  double dense_ms = 0.0;
  std::optional<double> dense_fp32_ms;         // in bf16: the dense block in fp32
  std::optional<double> plain_ms;              // of plain libtorch, as it starts
  std::optional<double> plain_all_threads_ms;  // with the threads that weft has
};

StepRecords bench_step(const StepOptions& options, const std::function<void(double)>& progress);

// Steps of several ranks, each with the block and all tokens of `shape`. In a round, one step each:
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

// A few steps, for the memory that they take. An empty recipe is dense.
void take_steps(const BlockShape& shape, const std::string& recipe, const Pattern& pattern,
                PlanMode mode, Precision precision, int steps);

}  // namespace weft::bench
