// Hubara et al. 2021, section 4: transposable masks by a fast approximation. The paper's prunes
// greedily and prunes at most twice the magnitude that the optimum does; its code keeps greedily,
// and so keeps at least half of what the optimum keeps (mask/greedy_prune.cpp, greedy_keep.cpp).
// Tested tile by tile on i.i.d. normal weights against the optimum (solver exact).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "weft/core/rng.h"
#include "weft/mask/solver.h"
#include "weft/report/table.h"
#include "weft/study/claims.h"
#include "weft/study/paired.h"

namespace weft {
namespace {

// Σ |w| of a tile, and of what a mask keeps there.
struct TileSums {
  double all = 0.0, kept = 0.0;
};

TileSums sums_of(const std::vector<float>& weights, const Mask& mask, int64_t row, int64_t col,
                 int64_t group) {
  TileSums sums;
  for (int64_t r = row; r < row + group; ++r) {
    for (int64_t c = col; c < col + group; ++c) {
      const double size = std::abs(weights[static_cast<size_t>(r * mask.cols() + c)]);
      sums.all += size;
      if (mask.at(r, c)) sums.kept += size;
    }
  }
  return sums;
}

// "2:4 greedy-keep"
std::vector<double> measure_approximation(const StudyRun& run, bool small) {
  const int64_t side = small ? 64 : 512;
  const size_t blank = run.variant.find(' ');
  const Pattern pattern = Pattern::parse(run.variant.substr(0, blank));
  const Solver& greedy = solver(run.variant.substr(blank + 1));
  std::vector<float> weights(static_cast<size_t>(side * side));
  const Rng rng(static_cast<uint64_t>(run.seed));
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(rng.normal(i));
  const WeightShape shape{side, side, 1};
  const Mask best = find_mask(solver("exact"), weights.data(), shape, pattern);
  const Mask found = find_mask(greedy, weights.data(), shape, pattern);
  double kept = 0.0, best_kept = 0.0, pruned = 0.0, best_pruned = 0.0;
  double least_kept = 1.0, most_pruned = 0.0;
  const int64_t group = pattern.group();
  for (int64_t row = 0; row < side; row += group) {
    for (int64_t col = 0; col < side; col += group) {
      const TileSums own = sums_of(weights, found, row, col, group);
      const TileSums optimum = sums_of(weights, best, row, col, group);
      kept += own.kept, best_kept += optimum.kept;
      pruned += own.all - own.kept, best_pruned += optimum.all - optimum.kept;
      least_kept = std::min(least_kept, own.kept / optimum.kept);
      most_pruned = std::max(most_pruned, (own.all - own.kept) / (optimum.all - optimum.kept));
    }
  }
  return {kept / best_kept, least_kept, pruned / best_pruned, most_pruned};
}

Judgement judge_approximation(const Claim& claim, std::span<const StudyRow> rows) {
  Judgement judgement;
  bool holds = true;
  Table table({"variant", ">kept / optimum", ">worst tile", ">pruned / optimum", ">worst tile",
               "its bound"});
  for (const std::string& variant : claim.variants) {
    const auto mean = [&](std::string_view figure) {
      const std::vector<double> values = values_of(rows, variant, claim.figure(figure));
      double sum = 0.0;
      for (const double value : values) sum += value;
      return sum / static_cast<double>(values.size());
    };
    const bool prunes = variant.ends_with("greedy-prune");
    const double least = std::ranges::min(values_of(rows, variant, claim.figure("kept, worst")));
    const double most = std::ranges::max(values_of(rows, variant, claim.figure("pruned, worst")));
    const bool within = prunes ? most <= 2.0 : least >= 0.5;
    holds &= within;
    table.add({variant, fmt::format("{:.4f}", mean("kept")), fmt::format("{:.4f}", least),
               fmt::format("{:.4f}", mean("pruned")), fmt::format("{:.4f}", most),
               fmt::format("{}: {}", prunes ? "pruned <= 2" : "kept >= 0.5",
                           within ? "kept" : "broken")});
  }
  std::string difference;
  for (const char* pattern : {"2:4", "4:8"}) {
    const auto kept = [&](const char* solver) {
      return values_of(rows, fmt::format("{} {}", pattern, solver), claim.figure("kept"));
    };
    difference +=
        fmt::format("{}{} at {}", difference.empty() ? "" : ", ",
                    paired_difference(kept("greedy-keep"), kept("greedy-prune")).str(), pattern);
  }
  judgement.table = {table.str()};
  judgement.reason = fmt::format(
      "{}; the code's greedy-keep keeps more of the optimum than the paper's "
      "greedy-prune by {}",
      holds ? "every tile is within the bounds" : "a bound is broken", difference);
  judgement.verdict = holds ? Verdict::kHolds : Verdict::kDoesNotHold;
  return judgement;
}

}  // namespace

Claim approximation_claim() {
  return {
      .name = "approximation",
      .paper = "Hubara 2021",
      .statement =
          "the fast approximation of a transposable mask is within a factor of two of "
          "the optimum",
      .variants = {"2:4 greedy-keep", "2:4 greedy-prune", "4:8 greedy-keep", "4:8 greedy-prune"},
      .figures = {"kept", "kept, worst", "pruned", "pruned, worst"},
      .run_seconds = 0.1,
      .measure = measure_approximation,
      .judge = judge_approximation};
}

}  // namespace weft
