#include "weft/train/recovery.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "weft/core/error.h"
#include "weft/prune/conversion.h"
#include "weft/train/network_to_convert.h"

namespace weft {
namespace {

constexpr std::array kSteps = {RecoveryStep::kMagnitude, RecoveryStep::kAbsorption,
                               RecoveryStep::kAdaprune,  RecoveryStep::kNorms,
                               RecoveryStep::kWanda,     RecoveryStep::kSparseGpt};

// Keeps every Gram matrix: each step asks for all of them.
class CachedInputs : public LayerInputs {
 public:
  explicit CachedInputs(const LayerInputs& inputs) : inputs_(inputs) {}
  void check(const std::string& layer, const WeightShape& shape, int64_t samples) const override {
    inputs_.check(layer, shape, samples);
  }
  Gram gram(const std::string& layer, const WeightShape& shape) const override {
    const auto [place, fresh] = grams_.try_emplace(layer);
    if (fresh) place->second = inputs_.gram(layer, shape);
    return place->second;
  }

 private:
  const LayerInputs& inputs_;
  mutable std::map<std::string, Gram> grams_;
};

// adaprune on the support of the steps before it, so that a row says what its values recover.
Method method_for(RecoveryStep step) {
  if (step == RecoveryStep::kAdaprune || step == RecoveryStep::kNorms) {
    return method_of("adaprune", support_name(SupportRule::kMagnitude));
  }
  return method_of(step_name(step));
}

class RecoveryLadder {
 public:
  RecoveryLadder(const RecoveryOptions& options, const Listener& listener)
      : options_(options),
        weights_(options.run / "model.safetensors"),
        checkpoint_(Checkpoint::open(weights_)),
        network_({options.run, weights_, options.data, options.samples}, listener.note),
        inputs_(network_.inputs()) {}

  RecoveryReport climb(const Listener& listener) {
    RecoveryReport report;
    report.run = network_.options();
    report.samples = std::min(options_.samples, network_.source().train_samples());
    const NetworkToConvert::Weights dense = network_.weights();
    report.dense = network_.evaluate();
    const uint64_t total = options_.patterns.size() * kSteps.size();
    for (const Pattern& pattern : options_.patterns) {
      for (const RecoveryStep step : kSteps) {
        if (step == RecoveryStep::kNorms && network_.norm_tensors().empty()) continue;
        report.rungs.push_back(convert(pattern, step));
        network_.restore(dense);
        if (listener.progress) listener.progress(report.rungs.size(), total);
      }
    }
    return report;
  }

 private:
  RecoveryRung convert(const Pattern& pattern, RecoveryStep step) {
    ConversionOptions options;
    options.method = method_for(step);
    options.pattern = pattern;
    options.transposable = options_.transposable;
    options.leave = network_.not_converted(options_.sparse_ends);
    NameExpressions names;
    names.with_heads = true;  // the network knows its ends
    const Conversion conversion(checkpoint_, Selection(names, checkpoint_), options, &inputs_);
    refuse_nothing(conversion);
    RecoveryRung rung{pattern, step, {}, {}};
    std::vector<LayerOutcome> outcomes;
    for (const LayerToConvert& layer : conversion.layers()) {
      outcomes.push_back(conversion.convert(layer, nullptr));
      rung.errors.push_back(outcomes.back().error_after.value());
    }
    // After all layers are converted: they are calibrated on the inputs of the dense network.
    for (const LayerOutcome& outcome : outcomes) {
      for (const auto& [tensor, values] : outcome.changed) network_.set(tensor.info.name, values);
    }
    if (step == RecoveryStep::kNorms) network_.estimate_norms();
    rung.eval = network_.evaluate();
    return rung;
  }

  void refuse_nothing(const Conversion& conversion) const {
    if (!conversion.layers().empty()) return;
    WEFT_CHECK(!options_.sparse_ends, "{}: no layer to convert", options_.run.string());
    throw OptionError("sparse_ends",
                      fmt::format(" is needed: {} has no layer to convert but the first and the "
                                  "last, which stay dense",
                                  options_.run.string()));
  }

  const RecoveryOptions& options_;
  std::filesystem::path weights_;
  Checkpoint checkpoint_;
  NetworkToConvert network_;
  CachedInputs inputs_;
};

}  // namespace

std::string_view step_name(RecoveryStep step) {
  switch (step) {
    case RecoveryStep::kMagnitude: return "magnitude";
    case RecoveryStep::kAbsorption: return "absorption";
    case RecoveryStep::kAdaprune: return "adaprune";
    case RecoveryStep::kNorms: return "+ norms";
    case RecoveryStep::kWanda: return "wanda";
    case RecoveryStep::kSparseGpt: return "sparsegpt";
  }
  return "";
}

double RecoveryRung::mean_error() const {
  return std::accumulate(errors.begin(), errors.end(), 0.0) /
         static_cast<double>(std::max<size_t>(1, errors.size()));
}

double RecoveryRung::worst_error() const { return errors.empty() ? 0.0 : std::ranges::max(errors); }

const RecoveryRung& RecoveryReport::rung_of(const Pattern& pattern, RecoveryStep step) const {
  const auto found = std::ranges::find_if(rungs, [&](const RecoveryRung& rung) {
    return rung.pattern == pattern && rung.step == step;
  });
  WEFT_CHECK(found != rungs.end(), "the report has no {} at {}", step_name(step), pattern.str());
  return *found;
}

double RecoveryReport::recovered(const RecoveryRung& rung) const {
  const double one_shot = rung_of(rung.pattern, RecoveryStep::kMagnitude).eval.accuracy;
  const double lost = dense.accuracy - one_shot;
  return lost > 0 ? (rung.eval.accuracy - one_shot) / lost : 0.0;
}

size_t RecoveryReport::layers_below(const RecoveryRung& rung, RecoveryStep step) const {
  const RecoveryRung& other = rung_of(rung.pattern, step);
  size_t below = 0;
  for (size_t i = 0; i < rung.errors.size(); ++i) below += rung.errors[i] < other.errors[i];
  return below;
}

RecoveryReport measure_recovery(const RecoveryOptions& options, const Listener& listener) {
  return RecoveryLadder(options, listener).climb(listener);
}

}  // namespace weft
