#include "weft/train/step_gradients.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <cmath>
#include <set>

#include "weft/torch/tensor_math.h"
#include "weft/train/optimizer.h"

namespace weft {
namespace {

// What a step changes before the optimiser's step: statistics of norms, what recipes count and find
// on the way, torch's random numbers. To go back to.
class BeforeStep {
 public:
  explicit BeforeStep(Model& model) : model_(model) {
    for (const torch::Tensor& buffer : model.buffers()) {
      buffers_.emplace_back(buffer, buffer.detach().clone());
    }
    random_ = at::detail::getDefaultCPUGenerator().get_state();
  }
  void restore() {
    for (auto& [buffer, before] : buffers_) buffer.set_data(before);
    for (const auto& [name, layer] : layers_of(model_)) layer->state_changed();
    at::Generator random = at::detail::getDefaultCPUGenerator();
    random.set_state(random_);
  }

 private:
  Model& model_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> buffers_;
  torch::Tensor random_;
};

torch::Tensor training_loss(const GradientInputs& inputs, const Batch& batch) {
  const torch::Tensor scores = widened(inputs.model.forward(batch.inputs)).flatten(0, -2);
  const torch::Tensor loss = torch::nn::functional::cross_entropy(
      scores, batch.targets.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(
          inputs.options.label_smoothing));
  return inputs.teacher == nullptr ? loss : inputs.teacher->mixed(loss, scores, batch.inputs);
}

Batch next_batch(const GradientInputs& inputs, const BatchPart& part, int64_t& data_position) {
  std::vector<int64_t> chosen(static_cast<size_t>(part.samples));
  const int64_t begin = data_position + part.offset;
  inputs.order.fill(begin, chosen);
  Batch batch = inputs.source.train_batch(chosen, begin);
  data_position += part.all;
  return batch;
}

[[noreturn]] void fail_loss(Model& model, const Batch& batch, double loss, int64_t step) {
  const torch::NoGradGuard no_grad;
  const LayerModule::FiniteWatch watch;
  model.forward(batch.inputs);
  const std::string where =
      watch.first().empty()
          ? parameter_not_finite(model)
          : fmt::format("the first layer whose product is not finite is {}", watch.first());
  throw Diverged(fmt::format(
      "step {}: the loss is {}: {}; a lower learning-rate, a longer warmup or clip may help", step,
      loss, where));
}

[[noreturn]] void fail_gradient(const Model& model, double norm, int64_t step) {
  for (const auto& parameter : model.named_parameters()) {
    const torch::Tensor gradient = parameter.value().grad();
    if (!gradient.defined() || torch::isfinite(gradient).all().item<bool>()) continue;
    throw Diverged(
        fmt::format("step {}: the gradient of {} is not finite; a lower learning-rate, a longer "
                    "warmup or clip may help",
                    step, parameter.key()));
  }
  throw Diverged(fmt::format("step {}: the norm of the gradients is {}", step, norm));
}

}  // namespace

std::string parameter_not_finite(const Model& model) {
  for (const auto& parameter : model.named_parameters()) {
    if (!torch::isfinite(parameter.value()).all().item<bool>()) {
      return fmt::format("the parameter {} is not finite", parameter.key());
    }
  }
  return "every parameter is finite";
}

BatchPart batch_part(const RunOptions& options, const ProcessGroup* ranks) {
  const int64_t all = options.batch / options.accumulate;
  if (ranks == nullptr) return {0, all, all};
  const int64_t size = ranks->size(), each = all / size;
  WEFT_CHECK(each >= 1 && each * size == all,
             "{} samples{} on {} ranks: they must be a multiple of the ranks, who share them", all,
             options.accumulate == 1 ? std::string(" per batch")
                                     : fmt::format(" per micro-batch (batch {}, accumulate {})",
                                                   options.batch, options.accumulate),
             size);
  return {ranks->rank() * each, each, all};
}

std::optional<BatchShare> BatchPart::scope(ProcessGroup* ranks) const {
  if (ranks == nullptr) return std::nullopt;
  return std::optional<BatchShare>(std::in_place, offset, samples, all,
                                   [ranks](const torch::Tensor& tensor) { ranks->sum(tensor); });
}

std::optional<double> accumulate_gradients(const GradientInputs& inputs, RunPosition& position,
                                           StepSplit& split) {
  const int64_t parts = inputs.options.accumulate, begin = position.data_position;
  const std::atomic<int>* stop = inputs.stop;
  std::optional<BeforeStep> before;
  if (stop != nullptr && parts > 1) before.emplace(inputs.model);
  const BatchPart own = batch_part(inputs.options, inputs.ranks);
  const double weight = static_cast<double>(own.samples) / static_cast<double>(own.all * parts);
  double loss = 0.0;
  for (int64_t i = 0; i < parts; ++i) {
    if (i > 0 && stop != nullptr && *stop != 0) {
      before->restore();
      position.data_position = begin;
      forget_gradients(inputs.optimizer);
      return std::nullopt;
    }
    auto start = StepClock::now();
    const Batch batch = next_batch(inputs, own, position.data_position);
    split.data += seconds_since(start);
    start = StepClock::now();
    const auto share = own.scope(inputs.ranks);
    const torch::Tensor one = training_loss(inputs, batch);
    const double value = one.item<double>();
    split.forward += seconds_since(start);
    if (!std::isfinite(value)) fail_loss(inputs.model, batch, value, position.step + 1);
    loss += inputs.ranks != nullptr ? value * weight : value / static_cast<double>(parts);
    if (inputs.ranks != nullptr && i + 1 == parts) {
      inputs.loss_known(loss);
      inputs.buckets->begin();
    }
    start = StepClock::now();
    if (inputs.ranks != nullptr) {
      (one * weight).backward();
    } else {
      (parts == 1 ? one : one / static_cast<double>(parts)).backward();
    }
    split.backward += seconds_since(start);
  }
  return loss;
}

double clip_gradients(Model& model,
                      const std::map<std::string, std::shared_ptr<LayerModule>>& layers,
                      double clip, int64_t step) {
  std::set<const void*> scores;
  for (const auto& [name, layer] : layers) {
    if (layer->scores.defined()) scores.insert(layer->scores.unsafeGetTensorImpl());
  }
  std::vector<torch::Tensor> gradients;
  const torch::NoGradGuard no_grad;
  double sum = 0.0;
  for (const torch::Tensor& parameter : model.parameters()) {
    if (!parameter.grad().defined()) continue;
    gradients.push_back(parameter.grad());
    if (scores.contains(parameter.unsafeGetTensorImpl())) continue;
    const double norm = parameter.grad().norm().item<double>();
    sum += norm * norm;
  }
  const double norm = std::sqrt(sum);
  if (!std::isfinite(norm)) fail_gradient(model, norm, step);
  if (clip > 0 && norm > clip) {
    for (torch::Tensor& gradient : gradients) gradient.mul_(clip / norm);
  }
  return norm;
}

}  // namespace weft
