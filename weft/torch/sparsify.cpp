#include "weft/torch/sparsify.h"

#include <re2/re2.h>
#include <torch/nn/modules/embedding.h>
#include <algorithm>

#include "weft/torch/conv2d.h"
#include "weft/torch/places.h"

namespace weft {
namespace {

// Of a product.
WeightShape shape_of(const Place& place) {
  if (const auto layer = place.layer()) return layer->weight_shape();
  const torch::Tensor& weight = *place.member;
  return {weight.size(0), weight.size(1), weight.numel() / (weight.size(0) * weight.size(1))};
}

int64_t channel_groups_of(const Place& place) {
  if (const auto layer = place.layer()) return layer->layer().channel_groups();
  const auto* conv = place.module->as<torch::nn::Conv2dImpl>();
  return conv == nullptr ? 1 : conv->options.groups();
}

std::string kind_of(const Place& place) {
  if (!place.is_product()) return place.module->name();
  const WeightShape shape = shape_of(place);
  if (place.module->as<torch::nn::Conv2dImpl>() == nullptr &&
      place.module->as<Conv2dImpl>() == nullptr) {
    return fmt::format("linear {} -> {}", shape.ins, shape.outs);
  }
  return fmt::format("conv {} -> {}, {} taps", shape.ins, shape.outs, shape.taps);
}

// Why weft cannot compute this layer, or nothing.
std::string cannot_compute(const Place& place) {
  const torch::nn::Module& module = *place.module;
  if (module.as<torch::nn::EmbeddingImpl>() != nullptr) return "an embedding: no product";
  if (!place.is_product()) return fmt::format("weft has no {}", module.name());
  const torch::Tensor weight = place.value();
  if (!weight.is_floating_point() || weight.is_meta()) {
    return fmt::format("weights of {}{}", c10::toString(weight.scalar_type()),
                       weight.is_meta() ? " on meta, without values" : "");
  }
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
    const std::string problem =
        Layer::objection(shape_of(place), channel_groups_of(place), recipe, pattern);
    if (!problem.empty()) {
      return {Recipe::parse("dense"), pattern, problem, LayerCause::kUnsuited};
    }
    return {std::move(recipe), pattern, std::move(reason), cause};
  }

  const SparsifyConfig& config_;
  std::vector<std::unique_ptr<RE2>> expressions_;
};

// What is attached to a module keeps it, so something must own it.
void require_owner(torch::nn::Module& model) {
  try {
    model.shared_from_this();
  } catch (const std::bad_weak_ptr&) {
    throw Error(
        "sparsify: the model is not held by a shared_ptr: call it after the constructor, on a "
        "module "
        "made by std::make_shared or in a ModuleHolder");
  }
}

LayerReport report_of(const Place& place, const LayerModule& layer, const std::string& reason) {
  const bool sparse = !layer.always_dense() || layer.settings().recipe.samples_gradient();
  return {place.name,
          place.weight,
          kind_of(place),
          sparse ? layer.settings().recipe.name : "dense",
          sparse ? layer.settings().pattern.str() : "",
          std::string(path_name(layer.path())),
          reason};
}

}  // namespace

bool matches_a_layer(const std::string& expression, const std::vector<LayerReport>& reports) {
  const RE2 compiled(expression, RE2::Quiet);
  return std::ranges::any_of(
      reports, [&](const LayerReport& one) { return RE2::FullMatch(one.name, compiled); });
}

std::vector<LayerReport> sparsify(torch::nn::Module& model, const SparsifyConfig& config) {
  const Rules rules(config);
  require_owner(model);
  const std::vector<Place> places = places_of(model);
  const TiedWeights tied_weights(model);
  const auto planner = config.planner ? config.planner : std::make_shared<Planner>();
  const Place *first = nullptr, *last = nullptr;
  for (const Place& place : places) {
    if (first == nullptr) first = &place;  // may be an embedding
    if (place.is_product()) last = &place;
  }
  std::vector<LayerReport> reports;
  for (const Place& place : places) {
    const auto number = static_cast<int64_t>(reports.size());
    const std::string tied = tied_reason(tied_weights, place);
    std::string problem = cannot_compute(place);
    // A transposed view, say of an encoder's weight: weft takes none that are not contiguous.
    if (problem.empty() && !tied.empty() && !place.value().is_contiguous()) problem = tied;
    if (!problem.empty()) {
      reports.push_back({place.name, place.weight, kind_of(place), "dense", "", "torch", problem});
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
  for (const Place& place : places_of(model)) {
    const auto layer = place.layer();
    if (!layer) continue;
    layer->weight.copy_(layer->effective_weight());  // in place: dense ones may be tied
    if (place.module != layer) {
      detach_layer(place);
      continue;
    }
    LayerSettings dense;
    dense.planner = layer->settings().planner;
    dense.precision = layer->settings().precision;
    layer->configure(dense);
  }
}

}  // namespace weft
