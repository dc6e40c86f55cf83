#include "bench/convert.h"

#include <bit>
#include <chrono>
#include <cmath>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"
#include "weft/mask/verify.h"

namespace weft::bench {
namespace {

double seconds_of(const std::function<void()>& body) {
  const auto begun = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// In place, of a length that is a power of two: mixes every input with every other.
void hadamard(std::vector<double>& x) {
  for (size_t half = 1; half < x.size(); half *= 2) {
    for (size_t i = 0; i < x.size(); i += 2 * half) {
      for (size_t j = i; j < i + half; ++j) {
        const double a = x[j], b = x[j + half];
        x[j] = a + b, x[j + half] = a - b;
      }
    }
  }
}

// ReLU of random signs, mixed: what is first in the latent vector is in every input.
void fill_sample(uint64_t seed, int64_t sample, int64_t ins, float* to) {
  const Rng rng(seed, static_cast<uint64_t>(sample) + 1), signs(seed, 0);
  std::vector<double> latent(std::bit_ceil(static_cast<size_t>(ins)));
  for (size_t i = 0; i < latent.size(); ++i) {
    const double sign = signs.bits(i) % 2 == 0 ? 1.0 : -1.0;
    latent[i] = sign * rng.normal(i) / std::sqrt(static_cast<double>(i + 1));
  }
  hadamard(latent);
  for (int64_t c = 0; c < ins; ++c) {
    to[c] = static_cast<float>(std::max(0.0, latent[static_cast<size_t>(c)]));
  }
}

Gram sampled_inputs(const ConvertOptions& options, int64_t ins, double* seconds) {
  GramBuilder builder(ins);
  constexpr int64_t kAtOnce = 512;
  std::vector<float> samples(static_cast<size_t>(kAtOnce * ins));
  *seconds = 0;
  for (int64_t first = 0; first < options.samples; first += kAtOnce) {
    const int64_t count = std::min(kAtOnce, options.samples - first);
    parallel_for(count, [&](int64_t i) {
      fill_sample(options.seed, first + i, ins, samples.data() + i * ins);
    });
    *seconds +=
        seconds_of([&] { builder.add(MatrixView<const float>(samples.data(), count, ins)); });
  }
  Gram gram;
  *seconds += seconds_of([&] { gram = builder.finish(); });
  return gram;
}

ConvertRecord measure(const LayerProblem& problem, const LayerSize& layer) {
  ConvertRecord record;
  ConvertedLayer converted;
  record.seconds = seconds_of([&] { converted = convert_layer(problem); });
  const GroupCount groups = count_groups_in(converted.support, problem.shape, problem.pattern);
  WEFT_CHECK(groups.violations == 0, "{} breaks {}", problem.method.name, problem.pattern.str());
  WEFT_CHECK(problem.method.recovery != Recovery::kLeastSquares ||
                 *converted.error_after <= *converted.error_before,
             "bench: the error of {} grew from {} to {}", problem.method.name,
             *converted.error_before, *converted.error_after);
  record.method = problem.method.name;
  record.pattern = problem.pattern;
  record.layer = layer;
  record.error_before = *converted.error_before;
  record.error_after = *converted.error_after;
  if (converted.solver) record.steps = converted.solver->most_steps;
  return record;
}

}  // namespace

std::vector<ConvertRecord> bench_convert(const ConvertOptions& options,
                                         const std::function<void(double fraction)>& progress) {
  std::vector<ConvertRecord> records;
  const size_t all = options.layers.size() * options.methods.size() * options.patterns.size();
  for (size_t l = 0; l < options.layers.size(); ++l) {
    const LayerSize& layer = options.layers[l];
    std::vector<double> weights(static_cast<size_t>(layer.outs * layer.ins));
    const Rng rng(options.seed, l + (uint64_t{1} << 40));
    for (size_t i = 0; i < weights.size(); ++i) weights[i] = 0.02 * rng.normal(i);
    double gram_seconds = 0;
    const Gram inputs = sampled_inputs(options, layer.ins, &gram_seconds);
    for (const Pattern& pattern : options.patterns) {
      for (const Method& method : options.methods) {
        LayerProblem problem;
        problem.weights = weights.data();
        problem.shape = {layer.outs, layer.ins, 1};
        problem.pattern = pattern;
        problem.transposable = options.transposable;
        problem.method = method;
        problem.inputs = &inputs;
        problem.free_bias = method.recovery == Recovery::kLeastSquares;
        problem.dtype = Dtype::kF32;
        records.push_back(measure(problem, layer));
        records.back().gram_seconds = gram_seconds;
        progress(static_cast<double>(records.size()) / static_cast<double>(all));
      }
    }
  }
  return records;
}

}  // namespace weft::bench
