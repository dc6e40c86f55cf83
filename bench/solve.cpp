#include "bench/solve.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
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
double time_of(const std::function<void()>& run) {
  constexpr double kLongEnough = 0.02;
  const Clock::time_point begun = Clock::now();
  int runs = 0;
  do {
    run();
    ++runs;
  } while (seconds_since(begun) < kLongEnough);
  return seconds_since(begun) / runs;
}

// On integers, unlike on floats, the compiler may add in any order, and does so in vectors.
void read_plainly(const std::vector<float>& weights, int64_t rows) {
  const auto cols = weights.size() / static_cast<size_t>(rows);
  std::atomic<uint32_t> sum = 0;
  parallel_for(rows, [&](int64_t r) {
    const float* row = weights.data() + static_cast<size_t>(r) * cols;
    uint32_t of_row = 0;
    for (size_t c = 0; c < cols; ++c) of_row += std::bit_cast<uint32_t>(row[c]);
    sum += of_row;
  });
}

double kept_in_rows(const std::vector<float>& weights, const Mask& mask, int64_t rows) {
  double kept = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < mask.cols(); ++c) {
      if (mask.at(r, c))
        kept += std::abs(static_cast<double>(weights[size_t(r * mask.cols() + c)]));
    }
  }
  return kept;
}

// What the best mask along inputs keeps, group by group; rows that share a pattern are summed.
double best_along_inputs(const std::vector<float>& weights, const WeightShape& shape,
                         const Pattern& pattern) {
  double best = 0;
  for (int64_t first = 0; first < shape.outs; ++first) {
    if (first % pattern.block() >= pattern.group()) continue;  // summed with the row it shares with
    const int64_t end = std::min(shape.outs, (first / pattern.block() + 1) * pattern.block());
    for (int64_t col = 0; col < shape.ins; col += pattern.group()) {
      std::vector<double> sums(size_t(std::min<int64_t>(pattern.group(), shape.ins - col)));
      for (int64_t r = first; r < end; r += pattern.group()) {
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += std::abs(static_cast<double>(weights[size_t(r * shape.ins + col) + i]));
        }
      }
      const auto keep = std::min<std::ptrdiff_t>(pattern.keep(), std::ssize(sums));
      std::nth_element(sums.begin(), sums.begin() + keep, sums.end(), std::greater<>());
      best = std::accumulate(sums.begin(), sums.begin() + keep, best);
    }
  }
  return best;
}

// Blocks of rows are solved independently, so the first few can be judged alone, by other means.
double optimum_of_rows(bool transposable, const std::vector<float>& weights,
                       const WeightShape& rows, const Pattern& pattern) {
  if (!transposable) return best_along_inputs(weights, rows, pattern);
  return kept_in_rows(weights, find_mask(solver("flow"), weights.data(), rows, pattern), rows.outs);
}

void check_results(const SolveOptions& options, const std::vector<float>& weights,
                   const WeightShape& shape, const Pattern& pattern) {
  const int64_t checked_rows = std::min<int64_t>(shape.outs, 4 * pattern.block());
  const WeightShape checked{checked_rows, shape.ins, 1};
  std::array<std::optional<double>, 2> optima;  // along inputs, transposable
  for (const Solver* solver : options.solvers) {
    const Mask mask = find_mask(*solver, weights.data(), shape, pattern);
    int64_t violations = count_groups_in(mask, shape, pattern).violations;
    if (solver->transposable) violations += count_groups_out(mask, shape, pattern).violations;
    WEFT_CHECK(violations == 0, "bench: solver {} breaks {} in {} groups", solver->name,
               pattern.str(), violations);
    if (!solver->exact) continue;
    std::optional<double>& optimum = optima[solver->transposable ? 1 : 0];
    if (!optimum) optimum = optimum_of_rows(solver->transposable, weights, checked, pattern);
    const double kept = kept_in_rows(weights, mask, checked_rows);
    WEFT_CHECK(std::abs(kept - *optimum) <= 1e-10 * *optimum,
               "bench: solver {} keeps {} of the first {} rows at {}, the optimum is {}",
               solver->name, kept, checked_rows, pattern.str(), *optimum);
  }
}

}  // namespace

std::vector<SolveRecord> bench_solve(const SolveOptions& options,
                                     const std::function<void(double)>& progress) {
  const WeightShape shape{options.size, options.size, 1};
  const std::vector<float> weights = gaussian_matrix(options.size, options.seed);
  const double megaweights = static_cast<double>(options.size * options.size) / 1e6;
  const auto flow = std::find_if(options.solvers.begin(), options.solvers.end(),
                                 [](const Solver* solver) { return solver->name == "flow"; });
  std::vector<SolveRecord> records;

  for (size_t p = 0; p < options.patterns.size(); ++p) {
    const Pattern& pattern = options.patterns[p];
    const double budget = options.seconds / static_cast<double>(options.patterns.size());
    const Clock::time_point begun = Clock::now();
    check_results(options, weights, shape, pattern);

    std::vector<double> read_seconds;
    std::vector<std::vector<double>> seconds(options.solvers.size());
    int rounds = 0;
    double round_seconds = seconds_since(begun);  // the check was a round without the clock
    do {
      const Clock::time_point round_begun = Clock::now();
      for (size_t s = 0; s < options.solvers.size(); ++s) {
        seconds[s].push_back(
            time_of([&] { find_mask(*options.solvers[s], weights.data(), shape, pattern); }));
      }
      read_seconds.push_back(time_of([&] { read_plainly(weights, options.size); }));
      round_seconds = seconds_since(round_begun);
      ++rounds;
      progress((static_cast<double>(p) + static_cast<double>(rounds) / options.rounds) /
               static_cast<double>(options.patterns.size()));
    } while (rounds < options.rounds && seconds_since(begun) + round_seconds < budget);

    for (size_t s = 0; s < options.solvers.size(); ++s) {
      std::vector<double> rates, parts, ratios;
      for (size_t i = 0; i < seconds[s].size(); ++i) {
        rates.push_back(megaweights / seconds[s][i]);
        parts.push_back(read_seconds[i] / seconds[s][i]);
        if (flow != options.solvers.end()) {
          ratios.push_back(seconds[static_cast<size_t>(flow - options.solvers.begin())][i] /
                           seconds[s][i]);
        }
      }
      records.push_back({std::string(options.solvers[s]->name), pattern,
                         options.solvers[s]->transposable, rounds, spread_of(rates),
                         spread_of(seconds[s]).median, spread_of(parts),
                         ratios.empty() ? std::nullopt : std::optional(spread_of(ratios))});
    }
  }
  return records;
}

}  // namespace weft::bench
