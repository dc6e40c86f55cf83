// metrics.jsonl of a run, line by line: the file of a long run has gigabytes.
//
// A killed run leaves half a line at the end; it does not count.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

#include "weft/core/json.h"
#include "weft/run/run_result.h"

namespace weft {

// The members of "split_ms" (docs/training.md). The first five add up to the step; the others are
// the time of the layers within them.
inline constexpr std::array<std::string_view, 10> kStepParts = {
    "data", "forward", "backward", "clip", "step", "mask", "pack", "fwd", "bwd_x", "bwd_w"};

// A line of a step. NaN: the line does not have the figure, or it was not finite.
struct StepMetrics {
  int64_t step = 0;
  double train_seconds = 0.0;  // of all steps so far, this one included
  double loss = 0.0;
  double learning_rate = 0.0;
  double gradient_norm = 0.0;
  double flip_rate = 0.0;
  double density = 0.0;
  double step_ms = 0.0;
  std::array<double, kStepParts.size()> part_ms{};
  bool measuring = false;  // by the planner: the step computed more than others
  Json layers;             // figures of each sparse layer, by its name; an object
  Json dense_flips;        // of a dense run that counts: rates by recipe; an object
};

struct MetricsListener {
  std::function<void(const StepMetrics&)> on_step;
  // With the seconds of all steps before it. Loss and accuracy as in StepMetrics.
  std::function<void(const EvalReport&, double train_seconds)> on_eval;
};

// Throws Error that names the file and the line if one is not a step or an evaluation, or if the
// steps are not in order. Steps without a line are taken to last as long as the next that has one.
void read_metrics(const std::filesystem::path& path, const MetricsListener& listener);

// The mean of a figure over the layers that have it; NaN if none has.
double mean_over_layers(const Json& layers, std::string_view figure);

}  // namespace weft
