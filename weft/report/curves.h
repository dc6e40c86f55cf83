// What the charts of a page show: the figures of runs as curves, one per variant.
//
//   a point   the mean over the seeds, of the mean over the steps that the point stands for
//   its band  from the lowest to the highest of the seeds
//
// A chart has at most kMostPoints points per curve; with more steps, neighbours are averaged within
// each run first. Figures that are not finite are gaps. Where a run ended early, the points after it
// are of the runs that went on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "weft/report/bar_chart.h"
#include "weft/report/line_chart.h"
#include "weft/report/runs.h"

namespace weft {

constexpr int64_t kMostPoints = 100;

// A figure of a run at a step.
struct Sample {
  int64_t step = 0;
  double seconds = 0.0;
  double value = 0.0;
};
using Samples = std::function<std::vector<Sample>(const ReportedRun&)>;

// The curve of one variant; `stride`: the steps that a point stands for.
std::vector<ChartPoint> curve_of(const Variant& variant, const Samples& samples, int64_t stride,
                                 bool over_seconds);

// Accuracy, losses, flips, retained magnitude: those for which there is something to draw.
std::vector<LineChart> curves_of(const std::vector<Variant>& variants);

// The parts of a step, of every variant: means over the half of the steps that are nearest to the
// median time; steps in which the planner measured are left out where others are there.
BarChart step_times_of(const std::vector<Variant>& variants);

}  // namespace weft
