#include "weft/report/curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "weft/core/median.h"

namespace weft {
namespace {

// Of one run, over the steps of a point.
struct Averaged {
  double sum = 0.0;
  int count = 0;
  double step_sum = 0.0;
  int64_t last_step = 0;
  double seconds = 0.0;  // at the last of them
};

std::map<int64_t, Averaged> averages_of(const std::vector<Sample>& samples, int64_t stride) {
  std::map<int64_t, Averaged> averages;  // by the last step that the point may have
  for (const Sample& sample : samples) {
    if (!std::isfinite(sample.value)) continue;
    Averaged& one = averages[(sample.step + stride - 1) / stride * stride];
    one.sum += sample.value;
    one.step_sum += static_cast<double>(sample.step);
    one.last_step = sample.step;
    one.seconds = sample.seconds;
    ++one.count;
  }
  return averages;
}

std::vector<Sample> of_steps(const ReportedRun& run, double StepFigures::*member) {
  std::vector<Sample> samples;
  for (const StepFigures& s : run.steps) samples.push_back({s.step, s.seconds, s.*member});
  return samples;
}

std::vector<Sample> of_evals(const ReportedRun& run, double EvalFigures::*member, double scale) {
  std::vector<Sample> samples;
  for (const EvalFigures& e : run.evals) samples.push_back({e.step, e.seconds, scale * e.*member});
  return samples;
}

int64_t last_step(const std::vector<Variant>& variants) {
  int64_t last = 1;
  for (const Variant& variant : variants) {
    for (const ReportedRun* run : variant.runs) last = std::max(last, run->last_step());
  }
  return last;
}

int64_t stride_for(int64_t steps) { return (steps + kMostPoints - 1) / kMostPoints; }

// Steps at which some run was evaluated.
size_t evaluations(const std::vector<Variant>& variants) {
  std::set<int64_t> steps;
  for (const Variant& variant : variants) {
    for (const ReportedRun* run : variant.runs) {
      for (const EvalFigures& e : run->evals) steps.insert(e.step);
    }
  }
  return steps.size();
}

// What a curve is drawn of, before it is known over what.
struct Measure {
  std::string id, heading, y_label, unit;
  Samples samples;
  int64_t stride = 1;
  bool high_first = true;
  bool sparse_only = false;
};

bool has_bands(const LineChart& chart) {
  return std::ranges::any_of(chart.series, [](const ChartSeries& series) {
    return std::ranges::any_of(series.points, [](const auto& p) { return p.high > p.low; });
  });
}

LineChart chart_of(const std::vector<Variant>& variants, const Measure& measure,
                   bool over_seconds) {
  LineChart chart{measure.id + (over_seconds ? "-seconds" : ""),
                  measure.heading + (over_seconds ? " over seconds" : " over steps"),
                  over_seconds ? "seconds of training" : "steps",
                  measure.y_label,
                  measure.unit,
                  AxisScale::kLinear,
                  measure.high_first,
                  over_seconds,
                  {},
                  {}};
  for (const Variant& variant : variants) {
    if (measure.sparse_only && variant.dense) continue;
    chart.series.push_back({variant.name, variant.style,
                            curve_of(variant, measure.samples, measure.stride, over_seconds)});
  }
  if (measure.stride > 1) {
    chart.notes.push_back(fmt::format("A point is the mean of {} steps.", measure.stride));
  }
  if (has_bands(chart)) chart.notes.emplace_back("Bands: lowest to highest of the seeds.");
  return chart;
}

bool is_empty(const LineChart& chart) {
  return std::ranges::all_of(chart.series,
                             [](const auto& series) { return series.points.empty(); });
}

// The lowest positive and the highest figure of a chart are far apart.
bool wants_logarithm(const LineChart& chart) {
  double low = std::numeric_limits<double>::infinity(), high = 0.0;
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (point.y > 0) low = std::min(low, point.y);
      high = std::max(high, point.y);
    }
  }
  constexpr double kFarApart = 30.0;
  return high > kFarApart * low;
}

void add_evaluations(const std::vector<Variant>& variants, std::vector<LineChart>& charts) {
  const size_t count = evaluations(variants);
  if (count <= 1 && variants.size() == 1) return;  // one point alone: the summary has it
  const int64_t stride =
      static_cast<int64_t>(count) > kMostPoints ? stride_for(last_step(variants)) : 1;
  const auto add = [&](Measure measure) {
    measure.stride = stride;
    if (count > 1) charts.push_back(chart_of(variants, measure, false));
    LineChart chart = chart_of(variants, measure, true);
    if (count == 1) chart.heading = measure.heading + " at the end, over seconds";
    charts.push_back(chart);
  };
  add({"accuracy", "Test accuracy", "accuracy, %", " %",
       [](const ReportedRun& run) { return of_evals(run, &EvalFigures::accuracy, 100.0); }});
  add({.id = "test-loss",
       .heading = "Test loss",
       .y_label = "loss",
       .unit = "",
       .samples = [](const ReportedRun& run) { return of_evals(run, &EvalFigures::loss, 1.0); },
       .high_first = false});
}

// One value all the way: a table says it better than a curve.
bool varies(const LineChart& chart) {
  for (const ChartSeries& series : chart.series) {
    for (const ChartPoint& point : series.points) {
      if (std::abs(point.y - series.points.front().y) > 1e-9) return true;
    }
  }
  return false;
}

void add_masks(const std::vector<Variant>& variants, int64_t stride,
               std::vector<LineChart>& charts) {
  Measure flips{"flips", "Flip rate over all sparse layers",
                "mask bits that change in a step, per weight", "",
                [](const ReportedRun& run) { return of_steps(run, &StepFigures::flip_rate); }};
  flips.stride = stride;
  flips.sparse_only = true;
  LineChart chart = chart_of(variants, flips, false);
  chart.heading = "Flip rate over steps";
  if (wants_logarithm(chart)) {
    chart.scale = AxisScale::kLog;
    chart.notes.emplace_back("Logarithmic; points without a flip are left out.");
  }
  charts.push_back(chart);
  Measure retained{"retained", "Retained magnitude", "share of Σ|w| kept, mean over layers", "",
                   [](const ReportedRun& run) { return of_steps(run, &StepFigures::retained); }};
  retained.stride = stride;
  retained.sparse_only = true;
  charts.push_back(chart_of(variants, retained, false));
  Measure density{"density", "Density of sparse layers", "share of weights kept", "",
                  [](const ReportedRun& run) { return of_steps(run, &StepFigures::density); }};
  density.stride = stride;
  density.sparse_only = true;
  chart = chart_of(variants, density, false);
  if (varies(chart)) charts.push_back(chart);
}

// The steps near the median of a run, or those of all its steps if it only measured.
std::vector<const StepFigures*> usual_steps(const ReportedRun& run) {
  const bool measured_only =
      std::ranges::all_of(run.steps, [](const StepFigures& s) { return s.measuring; });
  std::vector<double> times;
  for (const StepFigures& s : run.steps) {
    if (measured_only || !s.measuring) times.push_back(s.step_ms);
  }
  std::vector<const StepFigures*> usual;
  if (times.empty()) return usual;
  const double low = quantile(times, 0.25), high = quantile(times, 0.75);
  for (const StepFigures& s : run.steps) {
    const bool counts = measured_only || !s.measuring;
    if (counts && s.step_ms >= low && s.step_ms <= high) usual.push_back(&s);
  }
  return usual;
}

double part_ms(const StepFigures& s, std::string_view name) {
  const auto* const found = std::ranges::find(kStepParts, name);
  const double ms = s.part_ms[static_cast<size_t>(found - kStepParts.begin())];
  return std::isfinite(ms) ? ms : 0.0;
}

}  // namespace

std::vector<ChartPoint> curve_of(const Variant& variant, const Samples& samples, int64_t stride,
                                 bool over_seconds) {
  struct Joint {
    std::vector<double> values;
    double steps = 0.0, seconds = 0.0;
    int64_t last_step = 0;
  };
  std::map<int64_t, Joint> joint;
  for (const ReportedRun* run : variant.runs) {
    for (const auto& [step, one] : averages_of(samples(*run), stride)) {
      Joint& at = joint[step];
      at.values.push_back(one.sum / one.count);
      at.steps += one.step_sum / one.count;
      at.seconds += one.seconds;
      at.last_step = std::max(at.last_step, one.last_step);
    }
  }
  std::vector<ChartPoint> points;
  for (const auto& [step, at] : joint) {
    const auto count = static_cast<double>(at.values.size());
    const auto [low, high] = std::ranges::minmax(at.values);
    double mean = 0.0;
    for (const double value : at.values) mean += value / count;
    mean = std::clamp(mean, low, high);  // of equal values, it may round past them
    points.push_back(
        {at.last_step, (over_seconds ? at.seconds : at.steps) / count, mean, low, high});
  }
  return points;
}

std::vector<LineChart> curves_of(const std::vector<Variant>& variants) {
  const int64_t stride = stride_for(last_step(variants));
  std::vector<LineChart> charts;
  add_evaluations(variants, charts);
  Measure loss{"loss", "Training loss", "loss", "",
               [](const ReportedRun& run) { return of_steps(run, &StepFigures::loss); }};
  loss.stride = stride;
  loss.high_first = false;
  charts.push_back(chart_of(variants, loss, false));
  charts.push_back(chart_of(variants, loss, true));
  add_masks(variants, stride, charts);
  std::erase_if(charts, is_empty);
  return charts;
}

BarChart step_times_of(const std::vector<Variant>& variants) {
  BarChart chart{
      "step-time",
      "Where a step's time goes",
      "ms",
      {"fwd", "bwd_x", "bwd_w", "packing and sampling", "masks", "data", "the rest"},
      {"Products of layers (fwd: Y = X Wᵀ, bwd_x: dX = G W, bwd_w: dW = Gᵀ X), what sparse "
       "ones cost besides, and the rest: attention, norms, the loss, clipping, the "
       "optimiser.",
       "Means over the half of the steps nearest to the median, without steps in which "
       "the planner measured."},
      {}};
  constexpr std::array<std::string_view, 6> kParts = {"fwd",  "bwd_x", "bwd_w",
                                                      "pack", "mask",  "data"};
  for (const Variant& variant : variants) {
    BarRow row{variant.name, std::vector<double>(chart.parts.size(), 0.0)};
    std::vector<const StepFigures*> steps;
    for (const ReportedRun* run : variant.runs) {
      const auto usual = usual_steps(*run);
      steps.insert(steps.end(), usual.begin(), usual.end());
    }
    if (steps.empty()) continue;
    for (const StepFigures* step : steps) {
      double rest = step->step_ms;
      for (size_t p = 0; p < kParts.size(); ++p) {
        const double ms = part_ms(*step, kParts[p]);
        row.parts[p] += ms / static_cast<double>(steps.size());
        rest -= ms;
      }
      row.parts.back() += rest / static_cast<double>(steps.size());
    }
    row.parts.back() = std::max(0.0, row.parts.back());  // of tiny steps, each part is rounded up
    chart.rows.push_back(row);
  }
  return chart;
}

}  // namespace weft
