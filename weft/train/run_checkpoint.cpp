#include "weft/train/run_checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>

#include "weft/checkpoint/safetensors.h"
#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/torch/export_model.h"
#include "weft/torch/layer_module.h"
#include "weft/train/optimizer.h"

namespace weft {
namespace {

std::string model_tensor(const std::string& name) { return "model." + name; }

void load_state(const TensorFile& file, Model& model) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : model.named_parameters()) {  // in place: optimiser and layers hold them
    parameter.value().copy_(file.like(parameter.value(), model_tensor(parameter.key())));
  }
  const std::set<const void*> of_recipes = recipe_tensors(model);
  for (const auto& buffer : model.named_buffers()) {
    const std::string name = model_tensor(buffer.key());
    // Masks come and go, so the shapes of a recipe's buffers may differ: the layer checks them.
    const bool any_shape = of_recipes.contains(buffer.value().unsafeGetTensorImpl());
    const torch::Tensor saved = any_shape ? file.at(name) : file.like(buffer.value(), name);
    WEFT_CHECK(saved.scalar_type() == buffer.value().scalar_type(),
               "{}: tensor '{}' is of another type than the model's", file.name, name);
    torch::Tensor(buffer.value()).set_data(saved);
  }
  for (const auto& [name, layer] : layers_of(model)) {
    try {
      layer->state_changed();
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", file.name, error.what()));
    }
  }
}

}  // namespace

void save_run_checkpoint(const std::filesystem::path& path, Model& model,
                         torch::optim::Optimizer& optimizer, const RunPosition& position) {
  NamedTensors tensors;
  for (const auto& parameter : model.named_parameters()) {
    tensors.emplace_back(model_tensor(parameter.key()), parameter.value());
  }
  for (const auto& buffer : model.named_buffers()) {
    tensors.emplace_back(model_tensor(buffer.key()), buffer.value());
  }
  OptimizerState state = optimizer_state(model, optimizer);
  tensors.insert(tensors.end(), state.tensors.begin(), state.tensors.end());
  tensors.emplace_back("random", at::detail::getDefaultCPUGenerator().get_state());
  write_tensors(path, tensors, to_metadata({position, state.steps}), Checksum::kYes);
}

RunPosition load_run_checkpoint(const std::filesystem::path& path, const std::string& run,
                                Model& model, torch::optim::Optimizer& optimizer) {
  const std::string name = printable(path.string(), 4096);
  // The version first: another weft's files may have another checksum.
  const SavedPosition saved = position_from(SafetensorsReader(path).header().metadata, name);
  const RunPosition& position = saved.position;
  const TensorFile file = read_tensors(path, Checksum::kYes);
  WEFT_CHECK(position.run == run, "{}: belongs to another run, {}, not to {}", name,
             printable(position.run), run);
  load_state(file, model);
  load_optimizer_state(model, optimizer, file, saved.optimizer_steps);
  at::Generator random = at::detail::getDefaultCPUGenerator();
  random.set_state(file.at("random"));
  return position;
}

}  // namespace weft
