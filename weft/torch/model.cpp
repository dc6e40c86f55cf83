#include "weft/torch/model.h"

#include <torch/utils.h>

#include "weft/torch/layer_module.h"

namespace weft {

namespace {

std::shared_ptr<Model> model_of(const RunOptions& options, const ModelShape& shape) {
  switch (model_kind(options.model)) {
    case ModelKind::kMlp: return make_mlp(options, shape);
    case ModelKind::kCnn: return make_cnn(options, shape);
    case ModelKind::kResnet18: return make_resnet18(options, shape);
    case ModelKind::kVit: return make_vit(options, shape);
    case ModelKind::kGpt: break;
  }
  return make_gpt(options, shape);
}

}  // namespace

std::shared_ptr<Model> make_model(const RunOptions& options, const ModelShape& shape) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  const std::shared_ptr<Model> model = model_of(options, shape);
  LayerSettings settings;
  settings.precision = parse_precision(options.precision);
  if (settings.precision == Precision::kFp32) return model;
  for (const auto& [name, layer] : layers_of(*model)) layer->configure(settings);
  return model;
}

}  // namespace weft
