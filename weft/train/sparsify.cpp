#include "weft/train/sparsify.h"

#include <re2/re2.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>

#include <set>

#include "weft/train/layers/conv2d.h"
#include "weft/train/layers/linear.h"

namespace weft {
namespace {

// A module with weights of its own, and where it hangs.
struct Place {
  std::string name;
  std::string key;            // in its parent
  torch::nn::Module* parent;  // null for the model itself
  std::shared_ptr<torch::nn::Module> module;

  torch::nn::SequentialImpl* sequential() const {
    return parent == nullptr ? nullptr : parent->as<torch::nn::SequentialImpl>();
  }
};

bool has_matrices(const torch::nn::Module& module) {
  for (const torch::Tensor& parameter : module.parameters(/*recurse=*/false)) {
    if (parameter.dim() >= 2) return true;
  }
  return false;
}

// In the order of registration. A module that hangs in several places is taken up at its first.
class Places {
 public:
  explicit Places(torch::nn::Module& model) {
    if (has_matrices(model)) places_.push_back({"", "", nullptr, model.shared_from_this()});
    collect(model, "");
  }
  const std::vector<Place>& all() const { return places_; }

 private:
  void collect(torch::nn::Module& parent, const std::string& prefix) {
    for (const auto& child : parent.named_children()) {
      if (!seen_.insert(child.value().get()).second) continue;
      const std::string name = prefix.empty() ? child.key() : prefix + "." + child.key();
      if (has_matrices(*child.value())) {
        places_.push_back({name, child.key(), &parent, child.value()});
      }
      collect(*child.value(), name);
    }
  }

  std::vector<Place> places_;
  std::set<const torch::nn::Module*> seen_;
};

bool is_product(const torch::nn::Module& module) {
  return module.as<Layer>() != nullptr || module.as<torch::nn::LinearImpl>() != nullptr ||
         module.as<torch::nn::Conv2dImpl>() != nullptr;
}

std::optional<WeightShape> shape_of(const torch::nn::Module& module) {
  if (const auto* layer = module.as<Layer>()) return layer->weight_shape();
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
  if (const auto* layer = module.as<Layer>()) return layer->channel_groups();
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
std::string cannot_reach(const Place& place) {
  const torch::nn::Module& module = *place.module;
  if (module.as<Layer>() != nullptr) return "";
  if (module.as<torch::nn::EmbeddingImpl>() != nullptr) return "an embedding: no product";
  if (!is_product(module)) return fmt::format("weft has no {}", module.name());
  if (const auto* conv = module.as<torch::nn::Conv2dImpl>()) {
    const std::string problem = Conv2dImpl::cannot_take(Conv2dImpl::options_of(*conv));
    if (!problem.empty()) return problem;
  }
  if (place.sequential() != nullptr) return "";
  return fmt::format(
      "held by its type, which C++ cannot exchange: declare it as {}",
      module.as<torch::nn::Conv2dImpl>() != nullptr ? "weft::Conv2d" : "weft::Linear");
}

struct Decision {
  Recipe recipe = Recipe::parse("dense");
  Pattern pattern{2, 4};
  std::string reason;
};

class Rules {
 public:
  explicit Rules(const SparsityPlan& plan) : plan_(plan) {
    for (const LayerRule& rule : plan.rules) {
      auto compiled = std::make_unique<RE2>(rule.layers, RE2::Quiet);
      WEFT_CHECK(compiled->ok(), "the rule '{}' is no regular expression: {}", rule.layers,
                 compiled->error());
      checked(rule.recipe, rule.pattern);
      expressions_.push_back(std::move(compiled));
    }
    checked(plan.recipe, plan.pattern);
  }

  Decision decide(const Place& place, bool first, bool last) const {
    for (size_t i = 0; i < plan_.rules.size(); ++i) {
      if (!RE2::FullMatch(place.name, *expressions_[i])) continue;
      const LayerRule& rule = plan_.rules[i];
      return suited(place, Recipe::parse(rule.recipe), rule.pattern,
                    fmt::format("rule '{}'", rule.layers));
    }
    if (plan_.first_and_last_dense && (first || last)) {
      return {Recipe::parse("dense"), plan_.pattern, first ? "the first layer" : "the last layer"};
    }
    return suited(place, Recipe::parse(plan_.recipe), plan_.pattern, "the recipe of the plan");
  }

 private:
  void checked(const std::string& text, const Pattern& pattern) const {
    const Recipe recipe = Recipe::parse(text);
    recipe.check(pattern);
    WEFT_CHECK(plan_.total_steps > 0 || !recipe.needs_total_steps(),
               "recipe '{}' has a schedule in shares of the run: total_steps must be given", text);
  }

  static Decision suited(const Place& place, Recipe recipe, const Pattern& pattern,
                         std::string reason) {
    if (recipe.forward == ForwardPart::kDense && !recipe.samples_gradient()) {
      return {std::move(recipe), pattern, std::move(reason)};
    }
    const std::string problem = Layer::objection(*shape_of(*place.module),
                                                 channel_groups_of(*place.module), recipe, pattern);
    if (!problem.empty()) return {Recipe::parse("dense"), pattern, problem};
    return {std::move(recipe), pattern, std::move(reason)};
  }

  const SparsityPlan& plan_;
  std::vector<std::unique_ptr<RE2>> expressions_;
};

// Puts another module where `place` has one, in its Sequential.
template <typename Holder>
void exchange(const Place& place, Holder holder) {
  for (auto& any : *place.sequential()) {
    if (any.ptr() == place.module) any = torch::nn::AnyModule(holder);
  }
  for (const auto& child : place.parent->named_children()) {
    if (child.value() == place.module) place.parent->replace_module(child.key(), holder.ptr());
  }
}

std::shared_ptr<Layer> as_weft(const Place& place) {
  if (auto layer = std::dynamic_pointer_cast<Layer>(place.module)) return layer;
  const bool training = place.module->is_training();
  std::shared_ptr<Layer> made;
  if (const auto* linear = place.module->as<torch::nn::LinearImpl>()) {
    Linear holder(*linear);
    exchange(place, holder);
    made = holder.ptr();
  } else {
    Conv2d holder(*place.module->as<torch::nn::Conv2dImpl>());
    exchange(place, holder);
    made = holder.ptr();
  }
  made->train(training);
  return made;
}

LayerReport report_of(const Place& place, const Layer& layer, const std::string& reason) {
  const bool sparse = !layer.always_dense() || layer.settings().recipe.samples_gradient();
  return {place.name,
          kind_of(*place.module),
          sparse ? layer.settings().recipe.name : "dense",
          sparse ? layer.settings().pattern.str() : "",
          std::string(path_name(layer.path())),
          reason};
}

}  // namespace

std::vector<LayerReport> sparsify(torch::nn::Module& model, const SparsityPlan& plan) {
  const Rules rules(plan);
  const Places found(model);
  const std::vector<Place>& places = found.all();
  const auto planner = plan.planner ? plan.planner : std::make_shared<Planner>();
  const Place *first = nullptr, *last = nullptr;
  for (const Place& place : places) {
    if (!is_product(*place.module)) continue;
    if (first == nullptr) first = &place;
    last = &place;
  }
  std::vector<LayerReport> reports;
  for (const Place& place : places) {
    const auto number = static_cast<int64_t>(reports.size());
    if (const std::string problem = cannot_reach(place); !problem.empty()) {
      reports.push_back({place.name, kind_of(*place.module), "dense", "", "torch", problem});
      continue;
    }
    const Decision decision = rules.decide(place, &place == first, &place == last);
    LayerSettings settings;
    settings.recipe = decision.recipe;
    settings.pattern = decision.pattern;
    settings.total_steps = plan.total_steps;
    settings.seed = plan.seed;
    settings.number = number;
    settings.micro_batches = plan.micro_batches;
    settings.force_plain = plan.force_plain;
    settings.telemetry = plan.telemetry;
    settings.planner = planner;
    const auto layer = as_weft(place);
    layer->configure(settings);
    reports.push_back(report_of(place, *layer, decision.reason));
  }
  return reports;
}

void densify(torch::nn::Module& model) {
  const torch::NoGradGuard no_grad;
  const Places found(model);
  for (const Place& place : found.all()) {
    const auto layer = std::dynamic_pointer_cast<Layer>(place.module);
    if (!layer) continue;
    const bool training = layer->is_training();
    if (place.sequential() == nullptr) {
      layer->weight.set_data(layer->effective_weight());
      LayerSettings dense;
      dense.planner = layer->settings().planner;
      layer->configure(dense);
    } else if (auto* linear = layer->as<LinearImpl>()) {
      torch::nn::Linear torchs = linear->densified();
      torchs->train(training);
      exchange(place, torchs);
    } else if (auto* conv = layer->as<Conv2dImpl>()) {
      torch::nn::Conv2d torchs = conv->densified();
      torchs->train(training);
      exchange(place, torchs);
    }
  }
}

}  // namespace weft
