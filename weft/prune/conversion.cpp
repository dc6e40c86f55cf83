#include "weft/prune/conversion.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/mask/solver.h"
#include "weft/prune/elements.h"
#include "weft/prune/prune_weight.h"
#include "weft/prune/support.h"
#include "weft/prune/tensor_values.h"

namespace weft {
namespace {

constexpr double kNormEpsilon = 1e-5;  // torch's; files do not say

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

bool is_zero(double value) { return value == 0.0; }

// How many of the input's groups fit already. nonzero: of the whole layer.
void count_input(const Mask& nonzero, const LayerToConvert& layer, LayerOutcome& outcome) {
  outcome.groups = count_groups_in(nonzero, layer.shape, layer.pattern);
  outcome.zeros = static_cast<double>(nonzero.rows() * nonzero.cols() - nonzero.count());
}

void finish_counts(const LayerToConvert& layer, LayerOutcome& outcome) {
  const auto weights = static_cast<double>(layer.shape.outs * layer.shape.cols());
  outcome.zeros = weights > 0 ? outcome.zeros / weights : 0.0;
  outcome.expected_violations =
      1.0 - chance_to_fit(layer.pattern.group(), layer.pattern.keep(), outcome.zeros);
}

LayerOutcome outcome_of(const LayerToConvert& layer) {
  LayerOutcome outcome;
  outcome.name = layer.weight.tensor.info.name;
  outcome.shape = layer.weight.tensor.info.shape;
  outcome.transposed = layer.weight.transposed;
  outcome.pattern = layer.pattern;
  outcome.why = layer.why;
  return outcome;
}

// The tensor that absorbs the change of a layer's mean: its bias, or the running mean after it,
// which is subtracted.
struct MeanTaker {
  std::optional<ShardedTensor> tensor;  // nothing: it stays as it is, and the note says why
  std::vector<double> values;
  double sign = 1.0;
  std::vector<double> row_scale;  // of a normalisation, to be folded into the weights
  std::string note;

  std::vector<double> moved_by(const std::vector<double>& bias_change) const {
    std::vector<double> moved = values;
    for (size_t r = 0; r < moved.size(); ++r) moved[r] += sign * bias_change[r];
    return moved;
  }
};

// γ / √(variance + ε)
std::vector<double> folded_scale(const Checkpoint& checkpoint, const NormAfter& norm,
                                 const std::vector<double>& variance) {
  std::vector<double> scale(variance.size(), 1.0);
  if (norm.gamma) scale = read_values(checkpoint, *norm.gamma);
  double largest = 0.0;
  for (size_t r = 0; r < scale.size(); ++r) {
    scale[r] = std::abs(scale[r]) / std::sqrt(std::max(0.0, variance[r]) + kNormEpsilon);
    largest = std::max(largest, scale[r]);
  }
  // A row that is switched off (γ = 0) still keeps its largest weights.
  for (double& each : scale) each = std::max(each, 1e-6 * largest);
  return scale;
}

MeanTaker mean_taker(const Checkpoint& checkpoint, const LayerToConvert& layer,
                     const std::vector<double>& weights, const Gram& inputs) {
  MeanTaker taker;
  if (inputs.mean.empty()) {
    taker.note = fmt::format("the mean of its inputs is not known: {} is unchanged",
                             layer.bias ? "the bias" : printable(layer.norm->mean.info.name));
  } else if (layer.bias) {
    taker.tensor = layer.bias;
    taker.values = read_values(checkpoint, *layer.bias);
    taker.note = "its bias absorbs the change of the mean";
  } else {
    const NormAfter& norm = *layer.norm;
    const std::vector<double> variance = read_values(checkpoint, norm.variance);
    taker.values = read_values(checkpoint, norm.mean);
    if (normalises(taker.values, variance, weights, inputs)) {
      taker.tensor = norm.mean;
      taker.sign = -1.0;
      taker.row_scale = folded_scale(checkpoint, norm, variance);
      taker.note =
          fmt::format("{}, after it, absorbs the change of the mean", printable(norm.name));
    } else {
      taker.note =
          fmt::format("{} does not normalise its output and is unchanged", printable(norm.name));
    }
  }
  return taker;
}

ConvertedLayer naming_layer(const Checkpoint& checkpoint, const LayerToConvert& layer,
                            const LayerProblem& problem) {
  ConvertedLayer converted;
  naming_weights(checkpoint, layer.weight, 0, [&] {
    try {
      converted = convert_layer(problem);
    } catch (const UnusableWeightError&) {
      throw;
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", place_of(checkpoint, layer.weight.tensor), error.what()));
    }
  });
  return converted;
}

}  // namespace

std::string reason_text(const LayerLeftOut& left_out) {
  switch (left_out.reason) {
    case NotConverted::kNotSelected: return reason_text(left_out.left_alone.value(), left_out.info);
    case NotConverted::kFirstLayer: return "the first layer";
    case NotConverted::kLastLayer: return "the last layer";
    case NotConverted::kNoProduct: return left_out.detail;
    case NotConverted::kEmpty: return "has no weights";
    case NotConverted::kKeptDense: return "stays dense: " + left_out.detail;
  }
  return "";
}

Conversion::Conversion(const Checkpoint& checkpoint, const Selection& selection,
                       const ConversionOptions& options, const LayerInputs* inputs,
                       const std::function<void(uint64_t)>& progress)
    : checkpoint_(checkpoint), options_(options), inputs_(inputs) {
  WEFT_CHECK(inputs != nullptr || !options.method.needs_inputs(),
             "method {} needs the inputs of the layers: calibrate", options.method.name);
  select(selection);
  if (!options.pattern) choose_patterns(progress);
  for (const LayerToConvert& layer : layers_) {
    if (inputs == nullptr) break;
    inputs->check(layer.layer, layer.shape,
                  samples_needed(options.method, layer.shape, layer.pattern));
  }
  for (LayerToConvert& layer : layers_) {
    written_with_layers_.insert(layer.weight.tensor.info.name);
    // Two layers cannot have the same bias, or the same normalisation after them: names can
    // mislead.
    const auto taken = [&](const ShardedTensor& part) {
      return !written_with_layers_.insert(part.info.name).second;
    };
    if (layer.bias && taken(*layer.bias)) layer.bias.reset();
    if (layer.norm && taken(layer.norm->mean)) layer.norm.reset();
  }
  // What is written with a layer, or by the caller, is not left out.
  std::erase_if(left_out_, [&](const LayerLeftOut& one) {
    return written_with_layers_.contains(one.info.name) ||
           options_.written_elsewhere.contains(one.info.name);
  });
}

void Conversion::select(const Selection& selection) {
  for (const ShardedTensor& tensor : checkpoint_.tensors()) {
    if (const auto left = options_.leave.find(tensor.info.name); left != options_.leave.end()) {
      left_out_.push_back({tensor.info, left->second.reason, {}, left->second.detail, 0.0});
      continue;
    }
    if (const auto found = selection.left_alone(tensor.info)) {
      left_out_.push_back({tensor.info, NotConverted::kNotSelected, *found, "", 0.0});
      continue;
    }
    LayerToConvert layer;
    layer.weight = selection.weight(tensor);
    layer.layer = calibration_name(tensor.info.name);
    layer.shape = layer.weight.shape();
    if (layer.shape.outs == 0 || layer.shape.cols() == 0) {
      left_out_.push_back({tensor.info, NotConverted::kEmpty, {}, "", 0.0});
      continue;
    }
    if (options_.pattern) layer.pattern = *options_.pattern;
    if (moves_bias()) {
      const ShardedTensor* bias = find_tensor(checkpoint_, layer.layer + ".bias");
      const bool fits = bias != nullptr && is_weight_dtype(bias->info.dtype) &&
                        bias->info.shape == std::vector<int64_t>{layer.shape.outs};
      if (fits) layer.bias = *bias;
      if (!fits) layer.norm = norm_after(checkpoint_, layer.layer, layer.shape.outs);
    }
    layers_.push_back(std::move(layer));
  }
}

// ─── patterns ───

void Conversion::choose_patterns(const std::function<void(uint64_t)>& progress) {
  WEFT_CHECK(options_.auto_group >= 2 && options_.auto_group <= Pattern::kMaxGroup,
             "groups of {}: accepted are 2 to {}", options_.auto_group, Pattern::kMaxGroup);
  options_.density ? choose_by_density(progress) : choose_by_zeros(progress);
  std::erase_if(layers_, [&](const LayerToConvert& layer) {
    if (layer.pattern.keep() < layer.pattern.group()) return false;
    left_out_.push_back(
        {layer.weight.tensor.info, NotConverted::kKeptDense, {}, layer.why, layer.zeros});
    return true;
  });
}

void Conversion::choose_by_zeros(const std::function<void(uint64_t)>& progress) {
  const int group = options_.auto_group;
  for (LayerToConvert& layer : layers_) {
    double zeros = 0.0;
    for_each_band(checkpoint_, layer.weight, 1, [&](const Band& band) {
      const Mask nonzero =
          nonzero_mask(layer.weight.tensor.info.dtype, band.bytes, band.rows, layer.shape.cols());
      zeros += static_cast<double>(band.rows * layer.shape.cols() - nonzero.count());
      if (progress) progress(band.bytes.size());
    });
    zeros /= static_cast<double>(layer.shape.outs * layer.shape.cols());
    const int keep = keep_for_zeros(group, zeros, options_.confidence);
    layer.pattern = Pattern(keep, group);
    layer.zeros = zeros;
    layer.why = fmt::format("{:.1f}% zeros: {:.1f}% of groups have at most {} of {}", 100 * zeros,
                            100 * chance_to_fit(group, keep, zeros), keep, group);
    if (keep > 1) {
      layer.why += fmt::format(", {:.1f}% at most {}", 100 * chance_to_fit(group, keep - 1, zeros),
                               keep - 1);
    }
  }
}

void Conversion::choose_by_density(const std::function<void(uint64_t)>& progress) {
  std::vector<KeepCosts> costs;
  for (const LayerToConvert& layer : layers_) {
    if (inputs_ != nullptr) inputs_->check(layer.layer, layer.shape, 1);
    costs.push_back(keep_costs(layer));
    if (progress) progress(layer.weight.tensor.info.bytes());
  }
  const std::vector<int> keeps = keeps_for_density(costs, *options_.density);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto error = [&](int keep) { return costs[i].errors[static_cast<size_t>(keep - 1)]; };
    layers_[i].pattern = Pattern(keeps[i], options_.auto_group);
    layers_[i].why = fmt::format("error {:.4f} before recovery", error(keeps[i]));
    if (keeps[i] > 1) {
      layers_[i].why +=
          fmt::format(", {:.4f} at {}:{}", error(keeps[i] - 1), keeps[i] - 1, options_.auto_group);
    }
  }
}

// What each choice costs at once, before anything is made up for; without inputs, as if these were
// all alike and independent: ‖W' − W‖² / ‖W‖².
KeepCosts Conversion::keep_costs(const LayerToConvert& layer) const {
  const int64_t rows = layer.shape.outs, cols = layer.shape.cols();
  const std::vector<double> weights = read_values(checkpoint_, layer.weight);
  Gram inputs;
  std::vector<double> norms(static_cast<size_t>(cols), 1.0);
  if (inputs_ != nullptr) {
    inputs = inputs_->gram(layer.layer, layer.shape);
    for (int64_t c = 0; c < cols; ++c) {
      norms[static_cast<size_t>(c)] = std::sqrt(std::max(0.0, inputs.diagonal(c)));
    }
  }
  const auto energy = [&](const std::vector<double>& d) {
    if (inputs_ == nullptr) return std::inner_product(d.begin(), d.end(), d.begin(), 0.0);
    const std::vector<double> by_row = row_energies({d.data(), rows, cols}, inputs.view());
    return std::accumulate(by_row.begin(), by_row.end(), 0.0);
  };
  const double output = energy(weights);
  KeepCosts costs;
  for (int keep = 1; keep < options_.auto_group; ++keep) {
    SupportOptions support{Pattern(keep, options_.auto_group), options_.transposable, {}, {}};
    if (options_.method.support != SupportRule::kMagnitude) support.col_scale = norms;
    Mask kept;
    naming_weights(checkpoint_, layer.weight, 0,
                   [&] { kept = find_support(weights.data(), layer.shape, support); });
    std::vector<double> lost = weights;
    for (int64_t i = 0; i < rows * cols; ++i) {
      if (kept.at(i / cols, i % cols)) lost[static_cast<size_t>(i)] = 0.0;
    }
    costs.kept.push_back(rows * kept_per_row(layer.shape, support.pattern));
    costs.errors.push_back(output > 0 ? energy(lost) / output : 0.0);
  }
  costs.kept.push_back(rows * cols);
  costs.errors.push_back(0.0);
  return costs;
}

// ─── layers ───

Sparsity Conversion::promises() const {
  Sparsity sparsity = checkpoint_.sparsity();
  for (const LayerToConvert& layer : layers_) {
    sparsity.tensors.insert_or_assign(
        layer.weight.tensor.info.name,
        Promise{layer.pattern, options_.transposable ? Axis::kBoth : Axis::kIn, "",
                layer.weight.transposed});
  }
  return sparsity;
}

LayerOutcome Conversion::convert(const LayerToConvert& layer, CheckpointWriter* writer) const {
  const auto begun = std::chrono::steady_clock::now();
  const bool at_once = inputs_ == nullptr && options_.method.recovery == Recovery::kNone;
  LayerOutcome outcome = at_once ? stream(layer, writer) : solve(layer);
  finish_counts(layer, outcome);
  if (writer != nullptr && !at_once) write(layer, outcome, *writer);
  outcome.seconds = seconds_since(begun);
  return outcome;
}

void Conversion::write(const LayerToConvert& layer, const LayerOutcome& outcome,
                       CheckpointWriter& writer) const {
  for (const auto& [tensor, values] : outcome.changed) {
    if (is_ours(tensor)) write_values(writer, tensor, values);
  }
  if (outcome.changed.size() > 1) return;  // the mean was taken
  if (layer.bias && is_ours(*layer.bias)) writer.copy(checkpoint_, *layer.bias);
  if (layer.norm && is_ours(layer.norm->mean)) writer.copy(checkpoint_, layer.norm->mean);
}

// By magnitude alone, bands of rows are independent.
LayerOutcome Conversion::stream(const LayerToConvert& layer, CheckpointWriter* writer) const {
  const PruneTask task{
      checkpoint_, layer.weight, layer.pattern, default_solver(options_.transposable), false, true};
  const PruneFigures figures = prune_weight(task, [&](const Band& band, const Mask&) {
    if (writer != nullptr) write_band(*writer, layer.weight, band);
  });
  LayerOutcome outcome = outcome_of(layer);
  outcome.retained = figures.retained;
  outcome.groups = figures.groups;
  outcome.zeros = static_cast<double>(figures.zeros);
  return outcome;
}

LayerOutcome Conversion::solve(const LayerToConvert& layer) const {
  LayerOutcome outcome = outcome_of(layer);
  const std::vector<double> weights = read_values(checkpoint_, layer.weight);
  count_input(nonzeros(weights.data(), layer.shape.outs, layer.shape.cols()), layer, outcome);
  Gram inputs;
  if (inputs_ != nullptr) inputs = inputs_->gram(layer.layer, layer.shape);
  outcome.blind = inputs_ != nullptr && std::ranges::all_of(inputs.second, is_zero);
  if (outcome.blind) outcome.notes.emplace_back("its calibration inputs are all zero");
  MeanTaker taker;
  if (layer.bias || layer.norm) taker = mean_taker(checkpoint_, layer, weights, inputs);
  if (!taker.note.empty()) outcome.notes.push_back(taker.note);

  LayerProblem problem;
  problem.weights = weights.data();
  problem.shape = layer.shape;
  problem.pattern = layer.pattern;
  problem.transposable = options_.transposable;
  problem.method = options_.method;
  problem.inputs = inputs_ != nullptr ? &inputs : nullptr;
  problem.free_bias = taker.tensor.has_value();
  problem.row_scale = taker.row_scale;
  problem.damping = options_.damping;
  problem.least_squares = options_.least_squares;
  problem.dtype = layer.weight.tensor.info.dtype;
  ConvertedLayer converted = naming_layer(checkpoint_, layer, problem);
  outcome.error_before = converted.error_before;
  outcome.error_after = converted.error_after;
  outcome.solver = converted.solver;
  outcome.retained = retained(weights.data(), layer.shape, converted.support);
  if (converted.solver && converted.solver->unfinished_rows > 0) {
    outcome.notes.push_back(fmt::format("{} of {} rows did not converge in {} steps",
                                        converted.solver->unfinished_rows, layer.shape.outs,
                                        converted.solver->most_steps));
  }
  if (taker.tensor) {
    outcome.changed.emplace_back(*taker.tensor, taker.moved_by(converted.bias_change));
  }
  outcome.changed.emplace_back(layer.weight.tensor,
                               as_stored(layer.weight, std::move(converted.weights)));
  return outcome;
}

void Conversion::copy_others(CheckpointWriter& writer,
                             const std::function<void(uint64_t)>& progress) const {
  for (const ShardedTensor& tensor : checkpoint_.tensors()) {
    if (written_with_layers_.contains(tensor.info.name) || !is_ours(tensor)) continue;
    writer.copy(checkpoint_, tensor);
    if (progress) progress(tensor.info.bytes());
  }
}

}  // namespace weft
