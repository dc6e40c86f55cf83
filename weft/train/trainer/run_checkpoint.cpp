#include "weft/train/trainer/run_checkpoint.h"

#include <ATen/CPUGeneratorImpl.h>

#include "weft/checkpoint/safetensors.h"
#include "weft/core/text.h"
#include "weft/train/layers/layer.h"
#include "weft/train/trainer/export_model.h"
#include "weft/train/trainer/optimizer.h"

namespace weft {
namespace {

constexpr const char* kEntry = "weft.checkpoint";
constexpr int64_t kCheckpointVersion = 1;

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
    // Runs that began before there were row orders have none.
    if (any_shape && name.ends_with("row_order") && !file.tensors.contains(name)) continue;
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

Json entry_of(const Metadata& metadata, const std::string& path) {
  const auto found = metadata.find(kEntry);
  WEFT_CHECK(found != metadata.end(), "{}: not a checkpoint of a run of weft", path);
  Json entry = Json::parse(found->second, path);
  WEFT_CHECK(entry.is_object() && entry.contains("version"), "{}: the entry {} has no version",
             path, kEntry);
  WEFT_CHECK(entry["version"] == kCheckpointVersion, "{}: of version {}, and this weft knows {}",
             path, printable(entry["version"].dump()), kCheckpointVersion);
  return entry;
}

int64_t whole_number(const Json& entry, const char* name) {
  const Json& value = entry[name];
  WEFT_CHECK(value.is_number_unsigned() && value.get<uint64_t>() < uint64_t{1} << 62,
             "'{}' is no whole number", name);
  return value.get<int64_t>();
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
  Json products = Json::array();
  for (const std::string& product : position.products) products.push_back(product);
  const Json entry{{"version", kCheckpointVersion},
                   {"run", position.run},
                   {"step", position.step},
                   {"data_position", position.data_position},
                   {"metrics_bytes", position.metrics_bytes},
                   {"flips", position.flips},
                   {"train_seconds", position.train_seconds},
                   {"products", products},
                   {"optimizer_steps", state.steps}};
  write_tensors(path, tensors, {{kEntry, entry.dump()}}, Checksum::kYes);
}

RunPosition load_run_checkpoint(const std::filesystem::path& path, const std::string& run,
                                Model& model, torch::optim::Optimizer& optimizer) {
  const std::string name = printable(path.string(), 4096);
  // The version first: what a newer weft writes may have another checksum.
  const Json entry = entry_of(SafetensorsReader(path).header().metadata, name);
  const TensorFile file = read_tensors(path, Checksum::kYes);
  RunPosition position;
  try {
    position.run = entry["run"].get<std::string>();
    position.step = whole_number(entry, "step");
    position.data_position = whole_number(entry, "data_position");
    position.metrics_bytes = static_cast<uint64_t>(whole_number(entry, "metrics_bytes"));
    position.flips = entry["flips"].get<double>();
    position.train_seconds = entry["train_seconds"].get<double>();
    for (const Json& product : entry["products"]) {
      position.products.insert(product.get<std::string>());
    }
  } catch (const Error& error) {
    throw Error(fmt::format("{}: the entry {} is malformed: {}", name, kEntry, error.what()));
  }
  WEFT_CHECK(position.run == run, "{}: of another run: {}, and this one is {}", name,
             printable(position.run), run);
  load_state(file, model);
  load_optimizer_state(model, optimizer, file, entry["optimizer_steps"]);
  at::Generator random = at::detail::getDefaultCPUGenerator();
  random.set_state(file.at("random"));
  return position;
}

}  // namespace weft
