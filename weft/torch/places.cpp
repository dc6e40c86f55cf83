#include "weft/torch/places.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/embedding.h>

#include <set>

#include "weft/torch/conv2d.h"
#include "weft/torch/linear.h"
#include "weft/torch/routed_weight.h"

namespace weft {
namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() || name.empty() ? prefix + name : prefix + "." + name;
}

// Of a layer, or of what is attached to one.
bool is_below_attached(const std::string& name) {
  const std::string dotted = "." + name + ".", attached = fmt::format(".{}.", kAttached);
  return dotted.find(attached) != std::string::npos;
}

std::shared_ptr<torch::nn::Module> child_of(const torch::nn::Module& module,
                                            const std::string& name) {
  for (const auto& child : module.named_children()) {
    if (child.key() == name) return child.value();
  }
  return nullptr;
}

Place projection_of(const std::string& name, const std::shared_ptr<torch::nn::Module>& module,
                    const std::string& projection, torch::Tensor& member) {
  const std::string own = projection + "_weight";
  return {module, joined(name, projection), joined(name, own), own, projection, &member};
}

// The weights of one module that weft knows.
std::vector<Place> places_in(const std::string& name,
                             const std::shared_ptr<torch::nn::Module>& module) {
  Place one{module, name, joined(name, "weight"), "weight", "", nullptr};
  if (auto* layer = module->as<LayerModule>()) {
    one.member = &layer->weight;
  } else if (auto* linear = module->as<torch::nn::LinearImpl>()) {
    one.member = &linear->weight;
  } else if (auto* conv = module->as<torch::nn::Conv2dImpl>()) {
    one.member = &conv->weight;
  } else if (auto* embedding = module->as<torch::nn::EmbeddingImpl>()) {
    one.member = &embedding->weight;
  } else if (auto* attention = module->as<torch::nn::MultiheadAttentionImpl>()) {
    if (attention->_qkv_same_embed_dim) {
      return {projection_of(name, module, "in_proj", attention->in_proj_weight)};
    }
    return {projection_of(name, module, "q_proj", attention->q_proj_weight),
            projection_of(name, module, "k_proj", attention->k_proj_weight),
            projection_of(name, module, "v_proj", attention->v_proj_weight)};
  } else {
    return {};
  }
  return {one};
}

bool has_matrices(const torch::nn::Module& module) {
  for (const torch::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (parameter.dim() >= 2) return true;
  }
  return false;
}

class PlaceCollector {
 public:
  void visit(const std::shared_ptr<torch::nn::Module>& module, const std::string& name) {
    if (!seen_.insert(module.get()).second) return;
    std::vector<Place> known = places_in(name, module);
    if (known.empty() && has_matrices(*module)) {
      known = {{module, name, joined(name, "weight"), "weight", "", nullptr}};
    }
    found.insert(found.end(), known.begin(), known.end());
    for (const auto& child : module->named_children()) {
      if (child.key() != kAttached) visit(child.value(), joined(name, child.key()));
    }
  }
  std::vector<Place> found;

 private:
  std::set<const torch::nn::Module*> seen_;
};

}  // namespace

std::shared_ptr<LayerModule> Place::layer() const {
  if (auto own = std::dynamic_pointer_cast<LayerModule>(module)) return own;
  auto attached = child_of(*module, kAttached);
  if (attached && !projection.empty()) attached = child_of(*attached, projection);
  return std::dynamic_pointer_cast<LayerModule>(attached);
}

torch::Tensor Place::value() const {
  if (const auto own = layer()) return own->weight;
  return member == nullptr ? torch::Tensor() : *member;
}

bool Place::is_product() const {
  return member != nullptr && module->as<torch::nn::EmbeddingImpl>() == nullptr;
}

std::vector<Place> places_of(torch::nn::Module& model) {
  PlaceCollector collector;
  collector.visit(model.shared_from_this(), "");
  return collector.found;
}

std::shared_ptr<LayerModule> weft_layer(const Place& place) {
  if (auto layer = place.layer()) return layer;
  std::shared_ptr<LayerModule> layer;
  if (const auto* conv = place.module->as<torch::nn::Conv2dImpl>()) {
    layer = std::make_shared<Conv2dImpl>(*conv);
  } else {
    layer = std::make_shared<LinearImpl>(*place.member);
  }
  if (place.projection.empty()) {
    place.module->register_module(kAttached, layer);
  } else {
    auto all = child_of(*place.module, kAttached);
    if (!all) {
      all =
          place.module->register_module(kAttached, std::make_shared<torch::nn::Module>(kAttached));
    }
    layer->weight_suffix = "_weight";
    all->register_module(place.projection, layer);
  }
  *place.member = routed_weight(layer);
  return layer;
}

void detach_layer(const Place& place) {
  *place.member = place.layer()->weight;
  if (place.projection.empty()) return place.module->unregister_module(kAttached);
  const auto all = child_of(*place.module, kAttached);
  all->unregister_module(place.projection);
  if (all->children().empty()) place.module->unregister_module(kAttached);
}

TiedWeights::Extent::Extent(const torch::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
  int64_t last = 0;  // strides of torch are not negative
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  end = begin + static_cast<size_t>(last + 1) * tensor.element_size();
}

TiedWeights::TiedWeights(torch::nn::Module& model) {
  add("", model.shared_from_this());
  for (const auto& child : model.named_modules("", /*include_self=*/false)) {
    if (!is_below_attached(child.key())) add(child.key(), child.value());
  }
}

void TiedWeights::add(const std::string& prefix, const std::shared_ptr<torch::nn::Module>& module) {
  const auto add_one = [&](const std::string& name, const torch::Tensor& tensor) {
    all_.push_back({module.get(), name, joined(prefix, name), Extent(tensor)});
  };
  for (const Place& place : places_in(prefix, module)) add_one(place.own_weight, place.value());
  for (const auto& one : module->named_parameters(/*recurse=*/false)) {
    add_one(one.key(), one.value());
  }
  for (const auto& one : module->named_buffers(/*recurse=*/false)) add_one(one.key(), one.value());
}

std::string TiedWeights::other_owner(const Place& place) const {
  const Extent weight(place.value());
  for (const Owned& owned : all_) {
    const bool own = owned.module == place.module.get() && owned.own_name == place.own_weight;
    if (!own && owned.extent.overlaps(weight)) return owned.name;
  }
  return "";
}

}  // namespace weft
