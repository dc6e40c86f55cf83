#include "weft/torch/sparsify.h"

#include <re2/re2.h>
#include <torch/nn/modules/embedding.h>

#include <set>

#include "weft/torch/conv2d.h"
#include "weft/torch/linear.h"
#include "weft/torch/routed_weight.h"

namespace weft {
namespace {

// A module with weights of its own.
struct Place {
  std::string name;
  std::shared_ptr<torch::nn::Module> module;

  // The layer of weft that it is, or that computes for it; null if there is none.
  std::shared_ptr<LayerModule> layer() const {
    if (auto own = std::dynamic_pointer_cast<LayerModule>(module)) return own;
    for (const auto& child : module->named_children()) {
      if (child.key() == kAttached) return std::dynamic_pointer_cast<LayerModule>(child.value());
    }
    return nullptr;
  }
};

bool has_matrices(const torch::nn::Module& module) {
  for (const torch::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (parameter.dim() >= 2) return true;
  }
  return false;
}

// In the order of registration. A module that is registered in several places is taken up at its
// first.
class Places {
 public:
  explicit Places(torch::nn::Module& model) {
    if (has_matrices(model)) places_.push_back({"", model.shared_from_this()});
    collect(model, "");
  }
  const std::vector<Place>& all() const { return places_; }

 private:
  void collect(torch::nn::Module& parent, const std::string& prefix) {
    for (const auto& child : parent.named_children()) {
      if (child.key() == kAttached || !seen_.insert(child.value().get()).second) continue;
      const std::string name = prefix.empty() ? child.key() : prefix + "." + child.key();
      if (has_matrices(*child.value())) places_.push_back({name, child.value()});
      collect(*child.value(), name);
    }
  }

  std::vector<Place> places_;
  std::set<const torch::nn::Module*> seen_;
};

// The address range of the elements of a tensor; nothing if it has no memory of its own
// (the stand-in of routed_weight.h).
struct Extent {
  uintptr_t begin = 0, end = 0;

  explicit Extent(const torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage() || tensor.numel() == 0) return;
    int64_t last = 0;  // strides of torch are not negative
    for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
    begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
    end = begin + static_cast<size_t>(last + 1) * tensor.element_size();
  }
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// The weight that a module multiplies with or looks up. It is a member, which need not be the
// parameter that the module has registered: b->weight = a->weight changes the first only.
torch::Tensor weight_of(const Place& place) {
  if (const auto layer = place.layer()) return layer->weight;
  const torch::nn::Module& module = *place.module;
  if (const auto* linear = module.as<torch::nn::LinearImpl>()) return linear->weight;
  if (const auto* conv = module.as<torch::nn::Conv2dImpl>()) return conv->weight;
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) return embedding->weight;
  return {};
}

// Tied weights: memory that several modules of a model read.
class TiedWeights {
 public:
  explicit TiedWeights(torch::nn::Module& model) {
    add({"", model.shared_from_this()});
    for (const auto& child : model.named_modules("", /*include_self=*/false)) {
      const std::string& name = child.key();
      if (name.substr(name.rfind('.') + 1) != kAttached) add({name, child.value()});
    }
  }

  // Another module's tensor in the memory of this weight; empty: there is none.
  std::string other_owner(const Place& place) const {
    const Extent weight(weight_of(place));
    for (const Owned& owned : all_) {
      if (owned.module != place.module.get() && owned.extent.overlaps(weight)) return owned.name;
    }
    return "";
  }

 private:
  struct Owned {
    const torch::nn::Module* module;
    std::string name;
    Extent extent;
  };

  void add(const Place& place) {
    const auto add_one = [&](const std::string& name, const torch::Tensor& tensor) {
      all_.push_back({place.module.get(), place.name.empty() ? name : place.name + "." + name,
                      Extent(tensor)});
    };
    add_one("weight", weight_of(place));
    for (const auto& one : place.module->named_parameters(/*recurse=*/false)) {
      add_one(one.key(), one.value());
    }
    for (const auto& one : place.module->named_buffers(/*recurse=*/false)) {
      add_one(one.key(), one.value());
    }
  }

  std::vector<Owned> all_;
};

bool is_product(const torch::nn::Module& module) {
  return module.as<LayerModule>() != nullptr || module.as<torch::nn::LinearImpl>() != nullptr ||
         module.as<torch::nn::Conv2dImpl>() != nullptr;
}

std::optional<WeightShape> shape_of(const torch::nn::Module& module) {
  if (const auto* layer = module.as<LayerModule>()) return layer->weight_shape();
  if (const auto* linear = module.as<torch::nn::LinearImpl>()) {
    return WeightShape{linear->weight.size(0), linear->weight.size(1), 1};
  }
  if (const auto* conv = module.as<torch::nn::Conv2dImpl>()) {
    return WeightShape{conv->weight.size(0), conv->weight.size(1),
                       conv->weight.size(2) * conv->weight.size(3)};
  }
  return std::nullopt;
}

int64_t channel_groups_of(const torch::nn::Module& module) {
  if (const auto* layer = module.as<LayerModule>()) return layer->layer().channel_groups();
  const auto* conv = module.as<torch::nn::Conv2dImpl>();
  return conv == nullptr ? 1 : conv->options.groups();
}

std::string kind_of(const torch::nn::Module& module) {
  const auto shape = shape_of(module);
  if (!shape) return module.name();
  if (shape->taps == 1 && module.as<torch::nn::Conv2dImpl>() == nullptr &&
      module.as<Conv2dImpl>() == nullptr) {
    return fmt::format("linear {} -> {}", shape->ins, shape->outs);
  }
  return fmt::format("conv {} -> {}, {} taps", shape->ins, shape->outs, shape->taps);
}

// Why weft cannot compute this layer, or nothing.
std::string cannot_compute(const Place& place) {
  const torch::nn::Module& module = *place.module;
  if (module.as<LayerModule>() != nullptr) return "";
  if (module.as<torch::nn::EmbeddingImpl>() != nullptr) return "an embedding: no product";
  if (!is_product(module)) return fmt::format("weft has no {}", module.name());
  if (const auto* conv = module.as<torch::nn::Conv2dImpl>()) {
    const std::string problem = Conv2dImpl::cannot_take(Conv2dImpl::options_of(*conv));
    if (!problem.empty()) return problem;
  }
  return "";
}

// Another module that reads a tied weight reads all of it, and densify could not write the masked
// weight for one without changing the other: such layers stay dense.
std::string tied_reason(const TiedWeights& weights, const Place& place) {
  const std::string other = weights.other_owner(place);
  return other.empty() ? "" : fmt::format("tied: shares its weight with {}", other);
}

struct Decision {
  Recipe recipe = Recipe::parse("dense");
  Pattern pattern{2, 4};
  std::string reason;
  LayerCause cause = LayerCause::kConfig;
};

class Rules {
 public:
  explicit Rules(const SparsifyConfig& config) : config_(config) {
    for (const LayerRule& rule : config.rules) {
      auto compiled = std::make_unique<RE2>(rule.layers, RE2::Quiet);
      WEFT_CHECK(compiled->ok(), "rule '{}': not a regular expression: {}", rule.layers,
                 compiled->error());
      checked(rule.recipe, rule.pattern);
      expressions_.push_back(std::move(compiled));
    }
    checked(config.recipe, config.pattern);
    WEFT_CHECK(config.micro_batches >= 1, "{} micro-batches per step: there must be at least 1",
               config.micro_batches);
  }

  // tied: the reason why the layer stays dense, if its weight is tied.
  Decision decide(const Place& place, bool first, bool last, const std::string& tied) const {
    if (!tied.empty()) return {Recipe::parse("dense"), config_.pattern, tied, LayerCause::kTied};
    for (size_t i = 0; i < config_.rules.size(); ++i) {
      if (!RE2::FullMatch(place.name, *expressions_[i])) continue;
      const LayerRule& rule = config_.rules[i];
      return suited(place, Recipe::parse(rule.recipe), rule.pattern,
                    rule.reason.empty() ? fmt::format("rule '{}'", rule.layers) : rule.reason,
                    rule.cause);
    }
    if (config_.first_and_last_dense && (first || last)) {
      return {Recipe::parse("dense"), config_.pattern, first ? "the first layer" : "the last layer",
              LayerCause::kEnd};
    }
    return suited(place, Recipe::parse(config_.recipe), config_.pattern, "the recipe of the config",
                  LayerCause::kConfig);
  }

 private:
  void checked(const std::string& text, const Pattern& pattern) const {
    const Recipe recipe = Recipe::parse(text);
    recipe.check(pattern);
    WEFT_CHECK(config_.total_steps > 0 || !recipe.needs_total_steps(),
               "recipe '{}' has a schedule in shares of the run: total_steps is needed", text);
  }

  static Decision suited(const Place& place, Recipe recipe, const Pattern& pattern,
                         std::string reason, LayerCause cause) {
    if (recipe.is_dense() && !recipe.samples_gradient()) {
      return {std::move(recipe), pattern, std::move(reason), cause};
    }
    const std::string problem = Layer::objection(*shape_of(*place.module),
                                                 channel_groups_of(*place.module), recipe, pattern);
    if (!problem.empty()) {
      return {Recipe::parse("dense"), pattern, problem, LayerCause::kUnsuited};
    }
    return {std::move(recipe), pattern, std::move(reason), cause};
  }

  const SparsifyConfig& config_;
  std::vector<std::unique_ptr<RE2>> expressions_;
};

// The layer of weft for a place: itself, or one that is attached to it and computes for it.
template <typename Impl, typename TorchImpl>
std::shared_ptr<LayerModule> attach(TorchImpl& module) {
  auto layer = std::make_shared<Impl>(module);
  module.register_module(kAttached, layer);
  module.weight = routed_weight(layer);
  return layer;
}

std::shared_ptr<LayerModule> weft_layer(const Place& place) {
  if (auto layer = place.layer()) return layer;
  if (auto* linear = place.module->as<torch::nn::LinearImpl>()) {
    return attach<LinearImpl>(*linear);
  }
  return attach<Conv2dImpl>(*place.module->as<torch::nn::Conv2dImpl>());
}

template <typename TorchImpl>
void detach(TorchImpl& module, const LayerModule& layer) {
  module.weight = layer.weight;
  module.unregister_module(kAttached);
}

LayerReport report_of(const Place& place, const LayerModule& layer, const std::string& reason) {
  const bool sparse = !layer.always_dense() || layer.settings().recipe.samples_gradient();
  return {place.name,
          kind_of(*place.module),
          sparse ? layer.settings().recipe.name : "dense",
          sparse ? layer.settings().pattern.str() : "",
          std::string(path_name(layer.path())),
          reason};
}

}  // namespace

std::vector<LayerReport> sparsify(torch::nn::Module& model, const SparsifyConfig& config) {
  const Rules rules(config);
  const Places found(model);
  const std::vector<Place>& places = found.all();
  const TiedWeights tied_weights(model);
  const auto planner = config.planner ? config.planner : std::make_shared<Planner>();
  const Place *first = nullptr, *last = nullptr;
  for (const Place& place : places) {
    if (first == nullptr) first = &place;  // may be an embedding
    if (is_product(*place.module)) last = &place;
  }
  std::vector<LayerReport> reports;
  for (const Place& place : places) {
    const auto number = static_cast<int64_t>(reports.size());
    const std::string tied = tied_reason(tied_weights, place);
    std::string problem = cannot_compute(place);
    // A transposed view, say of an encoder's weight: weft takes none that are not contiguous.
    if (problem.empty() && !tied.empty() && !weight_of(place).is_contiguous()) problem = tied;
    if (!problem.empty()) {
      reports.push_back({place.name, kind_of(*place.module), "dense", "", "torch", problem});
      reports.back().cause = LayerCause::kNoProduct;
      continue;
    }
    const Decision decision = rules.decide(place, &place == first, &place == last, tied);
    LayerSettings settings;
    settings.recipe = decision.recipe;
    settings.pattern = decision.pattern;
    settings.precision = config.precision;
    settings.total_steps = config.total_steps;
    settings.seed = config.seed;
    settings.number = number;
    settings.label = place.name;
    settings.micro_batches = config.micro_batches;
    settings.replica = config.replica;
    settings.replicas = config.replicas;
    settings.force_plain = config.force_plain;
    settings.telemetry = config.telemetry;
    settings.planner = planner;
    const auto layer = weft_layer(place);
    layer->configure(settings);
    reports.push_back(report_of(place, *layer, decision.reason));
    reports.back().end = &place == first || &place == last;
    reports.back().cause = decision.cause;
  }
  return reports;
}

void densify(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  const Places found(model);
  for (const Place& place : found.all()) {
    const auto layer = place.layer();
    if (!layer) continue;
    layer->weight.copy_(layer->effective_weight());  // in place: dense ones may be tied
    if (auto* linear = place.module->as<torch::nn::LinearImpl>()) {
      detach(*linear, *layer);
    } else if (auto* conv = place.module->as<torch::nn::Conv2dImpl>()) {
      detach(*conv, *layer);
    } else {
      LayerSettings dense;
      dense.planner = layer->settings().planner;
      dense.precision = layer->settings().precision;
      layer->configure(dense);
    }
  }
}

}  // namespace weft
