#include "weft/train/export_model.h"

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/mask/verify.h"
#include "weft/pack/packed_file.h"
#include "weft/torch/layer_module.h"
#include "weft/torch/state_tensors.h"
#include "weft/train/tensor_file.h"

namespace weft {
namespace {

// lbc keeps more than N:M until its last removal.
bool keeps_pattern(const LayerModule& layer) {
  const LayerSettings& settings = layer.settings();
  if (!layer.state().sparse()) return false;
  const auto keeps_more = settings.recipe.forward->keeps_more;
  return keeps_more == nullptr ||
         !keeps_more(settings.recipe, layer.state().step, settings.total_steps);
}

bool keeps_both_axes(const LayerModule& layer) {
  const Recipe& recipe = layer.settings().recipe;
  if (recipe.forward->transposable) return true;
  return recipe.has_fixed_mask() &&
         count_groups_out(layer.state().forward, layer.weight_shape(), layer.settings().pattern,
                          layer.state().row_order)
                 .violations == 0;
}

// Empty: rows share without a row order.
std::string row_order_of(const LayerModule& layer, const std::string& weight) {
  return layer.state().row_order.empty() || !keeps_pattern(layer) ? "" : row_order_name(weight);
}

constexpr std::string_view kWeight = "weight", kDotWeight = ".weight";

}  // namespace

std::string weight_name(const std::string& layer) {
  return layer + std::string(layer.empty() ? kWeight : kDotWeight);
}

std::optional<std::string> layer_of_weight(const std::string& tensor) {
  if (tensor == kWeight) return "";
  if (!tensor.ends_with(kDotWeight)) return std::nullopt;
  return tensor.substr(0, tensor.size() - kDotWeight.size());
}

Sparsity promises_of(Model& model) {
  Sparsity sparsity;
  for (const auto& [name, layer] : layers_of(model)) {
    if (!keeps_pattern(*layer)) continue;
    const std::string tensor = weight_name(name);
    sparsity.tensors.emplace(tensor, Promise{layer->settings().pattern,
                                             keeps_both_axes(*layer) ? Axis::kBoth : Axis::kIn,
                                             row_order_of(*layer, tensor)});
  }
  return sparsity;
}

std::set<const void*> recipe_tensors(Model& model) {
  std::set<const void*> found;
  for (const auto& [name, layer] : layers_of(model)) {
    if (layer->scores.defined()) found.insert(layer->scores.unsafeGetTensorImpl());
    for (const torch::Tensor& buffer : layer->buffers(/*recurse=*/false)) {
      found.insert(buffer.unsafeGetTensorImpl());
    }
  }
  return found;
}

void export_model(const std::filesystem::path& path, Model& model) {
  const std::set<const void*> of_recipes = recipe_tensors(model);
  std::map<std::string, std::shared_ptr<LayerModule>> layer_of;  // by the name of its weight
  for (const auto& [name, layer] : layers_of(model)) {
    layer_of[weight_name(name)] = layer;
  }
  NamedTensors tensors;
  for (const auto& parameter : model.named_parameters()) {
    if (of_recipes.contains(parameter.value().unsafeGetTensorImpl())) continue;
    const auto layer = layer_of.find(parameter.key());
    tensors.emplace_back(parameter.key(), layer == layer_of.end()
                                              ? parameter.value().detach()
                                              : layer->second->effective_weight());
  }
  for (const auto& buffer : model.named_buffers()) {
    if (of_recipes.contains(buffer.value().unsafeGetTensorImpl())) continue;
    tensors.emplace_back(buffer.key(), buffer.value());
  }
  for (const auto& [weight, layer] : layer_of) {
    const std::string order = row_order_of(*layer, weight);
    if (!order.empty())
      tensors.emplace_back(order, tensor_of(state_array(order, layer->state().row_order)));
  }
  Metadata metadata = {{"format", "pt"}};
  promises_of(model).store_in(metadata);
  write_tensors(path, tensors, metadata);
}

bool export_packed(const std::filesystem::path& from, const std::filesystem::path& to) {
  const Checkpoint checkpoint = Checkpoint::open(from);
  std::map<std::string, PackChoice> chosen;
  for (const auto& [name, promise] : checkpoint.sparsity().tensors) {
    chosen.emplace(name, PackChoice{promise.without_row_order()});
  }
  if (chosen.empty()) return false;
  CheckpointWriter writer(to, packed_layout(checkpoint, chosen, PackedFormat::kWeft));
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    const auto choice = chosen.find(tensor.info.name);
    if (choice == chosen.end()) {
      writer.copy(checkpoint, tensor);
      continue;
    }
    std::vector<std::byte> bytes(tensor.info.bytes());
    checkpoint.read(tensor, 0, bytes);
    const MaskToPack found = mask_to_pack(tensor.info, bytes, choice->second.pattern);
    for (const StoredPart& part :
         pack_tensor(tensor.info, bytes, found.mask, choice->second, PackedFormat::kWeft)) {
      writer.write({{part.name, Dtype::kU8, {}, 0, 0}, tensor.shard}, 0, part.bytes);
    }
  }
  writer.commit();
  return true;
}

}  // namespace weft
