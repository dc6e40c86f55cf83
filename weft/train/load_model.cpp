#include "weft/train/load_model.h"

#include <re2/re2.h>

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/run/resume_options.h"
#include "weft/run/run_folder.h"
#include "weft/torch/export_model.h"
#include "weft/torch/layer_module.h"
#include "weft/torch/tensor_file.h"
#include "weft/train/init_weights.h"

namespace weft {
namespace {

// The layers whose recipe finds masks along both axes.
std::set<std::string> transposable_layers(const Json& record, const std::string& name) {
  std::set<std::string> found;
  if (!record.contains("layers")) return found;
  try {
    for (const Json& layer : record["layers"]) {
      const Recipe recipe = Recipe::parse(layer["recipe"].get<std::string>());
      if (!recipe.forward->transposable) continue;
      found.insert(layer["name"].get<std::string>());
    }
  } catch (const Error& error) {
    throw Error(fmt::format("{}: 'layers': {}", name, error.what()));
  }
  return found;
}

// A trained mask does not change, so it is a fixed one, sparse from the first step; transposable if
// it was found so, so that the planner is asked what it was asked in training.
SparsifyConfig plan_of(const Sparsity& promises, const std::set<std::string>& transposable,
                       const RunOptions& options, std::shared_ptr<Planner> planner) {
  SparsifyConfig config;
  for (const auto& [tensor, promise] : promises.tensors) {
    const auto layer = layer_of_weight(tensor);
    if (!layer) continue;
    config.rules.push_back({RE2::QuoteMeta(*layer),
                            transposable.contains(*layer)
                                ? "static+dense_head=0+forward=transposable"
                                : "static+dense_head=0",
                            promise.pattern});
  }
  config.rules.push_back({".*", "dense", Pattern(2, 4)});
  config.precision = parse_precision(options.precision);
  config.total_steps = 1;
  config.micro_batches = static_cast<int>(options.accumulate);
  config.planner = std::move(planner);
  return config;
}

void give_row_orders(const std::filesystem::path& path, const Sparsity& promises, Model& model) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  for (const auto& [name, layer] : layers_of(model)) {
    const auto promise = promises.tensors.find(weight_name(name, *layer));
    if (promise == promises.tensors.end() || layer->always_dense()) continue;
    layer->give_row_order(read_row_order(checkpoint, promise->second, layer->weight_shape().outs));
  }
}

}  // namespace

RunParts load_model(const std::filesystem::path& folder, const std::string& data) {
  const Json record = read_run_record(folder);
  RunParts parts;
  parts.options = resume_options(folder).resolved();
  if (!data.empty()) parts.options.data = data;
  parts.options.check();
  parts.source = make_batch_source(parts.options);
  require_memory(parts.options, parts.source->shape(), ModelUse::kEvaluation);
  parts.model = make_model(parts.options, parts.source->shape());
  const auto path = folder / "model.safetensors";
  std::error_code failure;
  // A run that is being extended still has the model of its first end.
  WEFT_CHECK(record["status"] == "done" && std::filesystem::exists(path, failure),
             "{}: the run has no model yet: continue it with `weft train --resume`",
             printable(folder.string(), 4096));
  const TensorFile file = read_tensors(path);
  const std::set<const void*> of_recipes = recipe_tensors(*parts.model);
  {
    const torch::NoGradGuard no_grad;
    for (auto& parameter : parts.model->named_parameters()) {
      parameter.value().copy_(file.like(parameter.value(), parameter.key()));
    }
    for (auto& buffer : parts.model->named_buffers()) {
      if (of_recipes.contains(buffer.value().unsafeGetTensorImpl())) continue;
      buffer.value().copy_(file.like(buffer.value(), buffer.key()));
    }
  }
  auto planner = std::make_shared<Planner>();
  const std::string name = printable(folder.string(), 4096) + "/run.json";
  remember_plan(*planner, record["plan"], name);
  planner->apply_at_once();  // the trained layers count their steps from 0
  const Sparsity promises = Sparsity::from_metadata(file.metadata, file.name);
  sparsify(*parts.model,
           plan_of(promises, transposable_layers(record, name), parts.options, planner));
  give_row_orders(path, promises, *parts.model);
  return parts;
}

RunParts load_network(const std::filesystem::path& folder, const std::filesystem::path& weights,
                      const std::string& data,
                      const std::function<void(const std::string&)>& note) {
  RunOptions options = resume_options(folder);
  if (!data.empty()) options.data = data;
  RunParts parts = make_parts(options, ModelUse::kEvaluation);
  load_init(weights, *parts.model, note);
  return parts;
}

}  // namespace weft
