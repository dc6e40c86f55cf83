#include "weft/prune/auto_pattern.h"

#include <algorithm>
#include <cmath>

#include "weft/core/error.h"

namespace weft {

double chance_to_fit(int group, int keep, double zeros) {
  WEFT_CHECK(group >= 1 && keep >= 0 && keep <= group && zeros >= 0 && zeros <= 1,
             "chance that {} of {} fit with a share of {} zeros: not valid", keep, group, zeros);
  double chance = 0.0;
  for (int i = group - keep; i <= group; ++i) {
    const double ways = std::lgamma(group + 1) - std::lgamma(i + 1) - std::lgamma(group - i + 1);
    chance += std::exp(ways) * std::pow(zeros, i) * std::pow(1 - zeros, group - i);
  }
  return std::min(1.0, chance);
}

int keep_for_zeros(int group, double zeros, double confidence) {
  WEFT_CHECK(confidence >= 0 && confidence < 1, "confidence {}: accepted are 0 to below 1",
             confidence);
  for (int keep = 1; keep < group; ++keep) {
    if (chance_to_fit(group, keep, zeros) > confidence) return keep;
  }
  return group;
}

namespace {

// A step down the lower convex hull of a layer's errors.
struct HullStep {
  size_t layer;
  int keep;      // that it leads to
  double price;  // error per weight
};

// The corners of the hull from keep = group down, as steps of rising price.
void add_hull_steps(const KeepCosts& costs, size_t layer, std::vector<HullStep>& steps) {
  const auto kept = [&](int keep) { return costs.kept[static_cast<size_t>(keep - 1)]; };
  const auto error = [&](int keep) { return costs.errors[static_cast<size_t>(keep - 1)]; };
  for (int keep = static_cast<int>(costs.errors.size()); keep > 1;) {
    const auto price = [&](int to) {
      return (error(to) - error(keep)) / static_cast<double>(kept(keep) - kept(to));
    };
    int best = 0;
    for (int to = keep - 1; to >= 1; --to) {
      if (kept(to) < kept(keep) && (best == 0 || price(to) < price(best))) best = to;
    }
    if (best == 0) return;  // groups so short that nothing more is lost
    steps.push_back({layer, best, price(best)});
    keep = best;
  }
}

}  // namespace

std::vector<int> keeps_for_density(const std::vector<KeepCosts>& layers, double density) {
  WEFT_CHECK(density > 0 && density <= 1, "density {}: accepted is above 0, at most 1", density);
  std::vector<HullStep> steps;
  std::vector<int> keeps;
  int64_t all = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    add_hull_steps(layers[i], i, steps);
    keeps.push_back(static_cast<int>(layers[i].errors.size()));
    all += layers[i].kept.back();
  }
  int64_t kept = all;
  std::ranges::stable_sort(steps, {}, &HullStep::price);
  for (const HullStep& step : steps) {
    if (static_cast<double>(kept) <= density * static_cast<double>(all)) break;
    int& keep = keeps[step.layer];
    if (step.keep >= keep) continue;  // hulls rise, but for rounding
    const std::vector<int64_t>& counts = layers[step.layer].kept;
    kept -= counts[static_cast<size_t>(keep - 1)] - counts[static_cast<size_t>(step.keep - 1)];
    keep = step.keep;
  }
  return keeps;
}

}  // namespace weft
