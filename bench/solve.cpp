#include "bench/solve.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/mask/retained.h"
#include "weft/mask/verify.h"

namespace weft::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

std::vector<float> gaussian_matrix(int64_t size, uint64_t seed) {
  std::vector<float> weights(static_cast<size_t>(size * size));
  const Rng rng(seed);
  parallel_for(size, [&](int64_t r) {
    for (int64_t c = 0; c < size; ++c) {
      const int64_t i = r * size + c;
      weights[static_cast<size_t>(i)] = static_cast<float>(rng.normal(static_cast<uint64_t>(i)));
    }
  });
  return weights;
}

// Seconds of one run, over at least 20 ms of runs.
double time_solver(const Solver& solver, const std::vector<float>& weights,
                   const WeightShape& shape, const Pattern& pattern) {
  constexpr double kLongEnough = 0.02;
  const Clock::time_point begun = Clock::now();
  int runs = 0;
  do {
    find_mask(solver, weights.data(), shape, pattern);
    ++runs;
  } while (seconds_since(begun) < kLongEnough);
  return seconds_since(begun) / runs;
}

void check_results(const SolvePlan& plan, const std::vector<float>& weights,
                   const WeightShape& shape, const Pattern& pattern) {
  std::optional<double> optimum;
  for (const Solver* solver : plan.solvers) {
    const Mask mask = find_mask(*solver, weights.data(), shape, pattern);
    int64_t violations = count_groups_in(mask, shape, pattern).violations;
    if (solver->transposable) violations += count_groups_out(mask, shape, pattern).violations;
    WEFT_CHECK(violations == 0, "bench: solver {} breaks {} in {} groups", solver->name,
               pattern.str(), violations);
    if (!solver->exact || !solver->transposable) continue;
    const double kept = retained(weights.data(), shape, mask).kept;
    if (!optimum) optimum = kept;
    WEFT_CHECK(std::abs(kept - *optimum) <= 1e-10 * *optimum,
               "bench: solver {} keeps {} at {}, another exact one {}", solver->name, kept,
               pattern.str(), *optimum);
  }
}

Spread spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  const double median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
  return {median, values.front(), values.back()};
}

}  // namespace

std::vector<SolveRecord> bench_solve(const SolvePlan& plan,
                                     const std::function<void(double)>& progress) {
  const WeightShape shape{plan.size, plan.size, 1};
  const std::vector<float> weights = gaussian_matrix(plan.size, plan.seed);
  const double megaweights = static_cast<double>(plan.size * plan.size) / 1e6;
  const auto flow = std::find_if(plan.solvers.begin(), plan.solvers.end(),
                                 [](const Solver* solver) { return solver->name == "flow"; });
  std::vector<SolveRecord> records;

  for (size_t p = 0; p < plan.patterns.size(); ++p) {
    const Pattern& pattern = plan.patterns[p];
    const double budget = plan.seconds / static_cast<double>(plan.patterns.size());
    const Clock::time_point begun = Clock::now();
    check_results(plan, weights, shape, pattern);

    std::vector<std::vector<double>> seconds(plan.solvers.size());
    int rounds = 0;
    double round_seconds = seconds_since(begun);  // the check was a round without the clock
    do {
      const Clock::time_point round_begun = Clock::now();
      for (size_t s = 0; s < plan.solvers.size(); ++s) {
        seconds[s].push_back(time_solver(*plan.solvers[s], weights, shape, pattern));
      }
      round_seconds = seconds_since(round_begun);
      ++rounds;
      progress((static_cast<double>(p) + static_cast<double>(rounds) / plan.rounds) /
               static_cast<double>(plan.patterns.size()));
    } while (rounds < plan.rounds && seconds_since(begun) + round_seconds < budget);

    for (size_t s = 0; s < plan.solvers.size(); ++s) {
      std::vector<double> rates, ratios;
      for (size_t i = 0; i < seconds[s].size(); ++i) {
        rates.push_back(megaweights / seconds[s][i]);
        if (flow != plan.solvers.end()) {
          ratios.push_back(seconds[static_cast<size_t>(flow - plan.solvers.begin())][i] /
                           seconds[s][i]);
        }
      }
      records.push_back({std::string(plan.solvers[s]->name), pattern, plan.solvers[s]->transposable,
                         rounds, spread_of(rates), spread_of(seconds[s]).median,
                         ratios.empty() ? std::nullopt : std::optional(spread_of(ratios))});
    }
  }
  return records;
}

}  // namespace weft::bench
