#include "weft/plan/trial.h"

#include <algorithm>
#include <cassert>

#include "weft/core/median.h"

namespace weft {
namespace {

std::vector<double> ratios(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> found;
  for (size_t i = 0; i < a.size(); ++i) found.push_back(a[i] / b[i]);
  return found;
}

}  // namespace

void Trial::add(std::span<const double> ms) {
  assert(ms.size() == ways_.size());
  constexpr double kLeast = 1e-6;  // a clock may stand still
  for (size_t i = 0; i < ms.size(); ++i) ms_[i].push_back(std::max(ms[i], kLeast));
}

size_t Trial::fastest(bool sparse) const {
  size_t best = ways_.size();
  double least = 0.0;
  for (size_t i = 0; i < ways_.size(); ++i) {
    if (ways_[i].sparse != sparse) continue;
    const double share = median(ratios(ms_[i], ms_[0]));
    if (best < ways_.size() && share >= least) continue;
    best = i;
    least = share;
  }
  return best;
}

Trial::Verdict Trial::verdict() const {
  const size_t dense = fastest(/*sparse=*/false), sparse = fastest(/*sparse=*/true);
  const std::vector<double> all = ratios(ms_[dense], ms_[sparse]);
  Verdict verdict;
  verdict.dense = ways_[dense];
  verdict.sparse = ways_[sparse];
  verdict.low = quantile(all, 0.25);
  verdict.ratio = quantile(all, 0.5);
  verdict.high = quantile(all, 0.75);
  verdict.dense_ms = quantile(ms_[dense], 0.25);
  verdict.sparse_ms = verdict.dense_ms / verdict.ratio;
  return verdict;
}

}  // namespace weft
