#include "weft/train/network_to_convert.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/torch/export_model.h"
#include "weft/torch/layer_module.h"
#include "weft/train/layer_inputs.h"
#include "weft/train/load_model.h"

namespace weft {

NetworkToConvert::NetworkToConvert(const NetworkOptions& options,
                                   const std::function<void(const std::string&)>& note)
    : sample_count_(options.samples) {
  at::set_num_threads(threads());  // first: torch's first product would set them, to one, for all
  parts_ = load_network(
      options.run, options.weights, options.data, note ? note : [](const std::string&) {});
  SparsifyConfig config;
  config.recipe = "dense";
  layers_ = sparsify(*parts_.model, config);
}

std::map<std::string, NetworkObjection> NetworkToConvert::not_converted(bool ends) const {
  std::map<std::string, NetworkObjection> found;
  for (const LayerReport& layer : layers_) {
    if (layer.cause == LayerCause::kNoProduct) {
      found[layer.weight] = {NotConverted::kNoProduct, layer.reason};
    } else if (layer.end && !ends) {
      const bool first = &layer == &layers_.front();
      found[layer.weight] = {first ? NotConverted::kFirstLayer : NotConverted::kLastLayer, ""};
    }
  }
  return found;
}

NetworkToConvert::Weights NetworkToConvert::weights() const {
  Weights all;
  for (const auto& each : parts_.model->named_parameters()) all[each.key()] = each.value().detach();
  for (const auto& each : parts_.model->named_buffers()) all[each.key()] = each.value();
  for (auto& [name, tensor] : all) tensor = tensor.clone();
  return all;
}

void NetworkToConvert::restore(const Weights& weights) {
  const torch::NoGradGuard no_grad;
  for (const auto& each : parts_.model->named_parameters())
    each.value().copy_(weights.at(each.key()));
  for (const auto& each : parts_.model->named_buffers()) each.value().copy_(weights.at(each.key()));
  weights_changed();
}

void NetworkToConvert::set(const std::string& tensor, const std::vector<double>& values) {
  const torch::NoGradGuard no_grad;
  const auto parameters = parts_.model->named_parameters();
  const auto buffers = parts_.model->named_buffers();
  const torch::Tensor* to = parameters.find(tensor);
  if (to == nullptr) to = buffers.find(tensor);
  WEFT_CHECK(to != nullptr && to->numel() == static_cast<int64_t>(values.size()),
             "the network has no tensor {} of {} values", printable(tensor), values.size());
  to->copy_(torch::tensor(values, torch::kFloat64).reshape(to->sizes()));
  weights_changed();
}

void NetworkToConvert::weights_changed() {
  inputs_.forget();
  for (const auto& [name, layer] : layers_of(*parts_.model)) layer->weights_changed();
}

int64_t NetworkToConvert::batch() const {
  return std::max<int64_t>(1, parts_.options.batch / parts_.options.accumulate);
}

std::set<std::string> NetworkToConvert::norm_tensors() const {
  std::set<std::string> names;
  for (const auto& each : parts_.model->named_buffers()) {
    const std::string& name = each.key();
    if (name.ends_with(".running_mean") || name.ends_with(".running_var")) names.insert(name);
  }
  return names;
}

std::map<std::string, std::vector<double>> NetworkToConvert::estimate_norms() {
  weft::estimate_norms({*parts_.model, *parts_.source, sample_count_, batch()});
  std::map<std::string, std::vector<double>> found;
  const auto buffers = parts_.model->named_buffers();
  for (const std::string& name : norm_tensors()) {
    const torch::Tensor values = buffers[name].to(torch::kFloat64).contiguous();
    found[name].assign(values.data_ptr<double>(), values.data_ptr<double>() + values.numel());
  }
  return found;
}

EvalReport NetworkToConvert::evaluate() {
  return weft::evaluate(*parts_.model, *parts_.source, batch(), parts_.options.eval_samples);
}

void NetworkToConvert::Inputs::check(const std::string& layer, const WeightShape& shape,
                                     int64_t) const {
  if (std::ranges::find(wanted_, layer) == wanted_.end()) wanted_.push_back(layer);
  for (const auto& [name, each] : layers_of(*network_.parts_.model)) {
    if (name != layer) continue;
    WEFT_CHECK(each->layer().channel_groups() == 1,
               "layer {}: its groups of channels have different inputs; exclude it",
               printable(layer));
    WEFT_CHECK(each->weight_shape().cols() == shape.cols(),
               "layer {}: {} columns in the network, {} in the file", printable(layer),
               each->weight_shape().cols(), shape.cols());
    return;
  }
  throw Error(fmt::format("the network of the run has no layer {}; exclude it", printable(layer)));
}

Gram NetworkToConvert::Inputs::gram(const std::string& layer, const WeightShape& shape) const {
  check(layer, shape, 1);
  if (!ready_.contains(layer)) collect_from(layer);
  Gram gram = std::move(ready_.at(layer));
  ready_.erase(layer);
  return gram;
}

// Of this layer and of those that will be asked for next.
void NetworkToConvert::Inputs::collect_from(const std::string& layer) const {
  std::map<std::string, int64_t> cols;
  for (const auto& [name, each] : layers_of(*network_.parts_.model)) {
    cols[name] = each->weight_shape().cols();
  }
  std::map<std::string, GramBuilder> builders;
  std::set<std::string> names;
  int64_t bytes = 0;
  for (auto one = std::ranges::find(wanted_, layer); one != wanted_.end(); ++one) {
    bytes += GramBuilder::bytes_for(cols.at(*one));
    if (!names.empty() && bytes > kMostBytes) break;
    names.insert(*one);
    builders.emplace(*one, GramBuilder(cols.at(*one)));
  }
  for_each_layer_input(
      {*network_.parts_.model, *network_.parts_.source, network_.sample_count_, network_.batch()},
      names,
      [&](const std::string& name, MatrixView<const float> rows) { builders.at(name).add(rows); });
  ready_.clear();
  for (auto& [name, builder] : builders) ready_[name] = builder.finish();
}

}  // namespace weft
