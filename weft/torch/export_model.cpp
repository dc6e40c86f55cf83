#include "weft/torch/export_model.h"

#include <map>

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/mask/verify.h"
#include "weft/pack/packed_file.h"
#include "weft/torch/layer_module.h"
#include "weft/torch/state_tensors.h"
#include "weft/torch/tensor_file.h"

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

}  // namespace

std::string weight_name(const std::string& name, const LayerModule& layer) {
  const std::string& suffix = layer.weight_suffix;
  return name.empty() && suffix.starts_with('.') ? suffix.substr(1) : name + suffix;
}

std::optional<std::string> layer_of_weight(const std::string& tensor) {
  constexpr std::string_view kDotWeight = ".weight", kDashWeight = "_weight";
  if (tensor == kDotWeight.substr(1)) return "";
  if (tensor.ends_with(kDotWeight)) return tensor.substr(0, tensor.size() - kDotWeight.size());
  const std::string own = tensor.substr(tensor.rfind('.') + 1);  // 0 without a dot
  for (const char* projection : {"in_proj", "q_proj", "k_proj", "v_proj"}) {
    if (own != fmt::format("{}{}", projection, kDashWeight)) continue;
    return tensor.substr(0, tensor.size() - kDashWeight.size());
  }
  return std::nullopt;
}

std::set<const void*> recipe_tensors(torch::nn::Module& model) {
  std::set<const void*> found;
  for (const auto& [name, layer] : layers_of(model)) {
    if (layer->scores.defined()) found.insert(layer->scores.unsafeGetTensorImpl());
    for (const torch::Tensor& buffer : layer->buffers(/*recurse=*/false)) {
      found.insert(buffer.unsafeGetTensorImpl());
    }
  }
  return found;
}

namespace {

struct Exported {
  std::string name;
  torch::Tensor tensor;
  LayerModule* layer;  // that multiplies with it; null: none of weft's
};

// The parameters that belong to the model. Their layer is found by the name first: the member
// `weight` of a torch layer need not be the parameter of that name. Then by the tensor: a module that
// is registered twice has its parameters under two names.
std::vector<Exported> exported_parameters(torch::nn::Module& model) {
  std::map<std::string, LayerModule*> by_name;
  std::map<const void*, LayerModule*> by_tensor;
  for (const auto& [name, layer] : layers_of(model)) {
    by_name.emplace(weight_name(name, *layer), layer.get());
    by_tensor.emplace(layer->weight.unsafeGetTensorImpl(), layer.get());
  }
  const std::set<const void*> of_recipes = recipe_tensors(model);
  std::vector<Exported> found;
  for (const auto& parameter : model.named_parameters()) {
    const void* tensor = parameter.value().unsafeGetTensorImpl();
    if (of_recipes.contains(tensor)) continue;
    LayerModule* layer = nullptr;
    if (const auto named = by_name.find(parameter.key()); named != by_name.end()) {
      layer = named->second;
    } else if (const auto held = by_tensor.find(tensor); held != by_tensor.end()) {
      layer = held->second;
    }
    found.push_back({parameter.key(), parameter.value().detach(), layer});
  }
  return found;
}

}  // namespace

Sparsity promises_of(torch::nn::Module& model) {
  Sparsity sparsity;
  for (const Exported& one : exported_parameters(model)) {
    if (one.layer == nullptr || !keeps_pattern(*one.layer)) continue;
    sparsity.tensors.emplace(one.name,
                             Promise{one.layer->settings().pattern,
                                     keeps_both_axes(*one.layer) ? Axis::kBoth : Axis::kIn,
                                     row_order_of(*one.layer, one.name)});
  }
  return sparsity;
}

void export_model(const std::filesystem::path& path, torch::nn::Module& model) {
  NamedTensors tensors, orders;
  for (const Exported& one : exported_parameters(model)) {
    tensors.emplace_back(one.name,
                         one.layer == nullptr ? one.tensor : one.layer->effective_weight());
    const std::string order = one.layer == nullptr ? "" : row_order_of(*one.layer, one.name);
    if (!order.empty()) {
      orders.emplace_back(order, tensor_of(state_array(order, one.layer->state().row_order)));
    }
  }
  const std::set<const void*> of_recipes = recipe_tensors(model);
  for (const auto& buffer : model.named_buffers()) {
    if (of_recipes.contains(buffer.value().unsafeGetTensorImpl())) continue;
    tensors.emplace_back(buffer.key(), buffer.value());
  }
  tensors.insert(tensors.end(), orders.begin(), orders.end());
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
