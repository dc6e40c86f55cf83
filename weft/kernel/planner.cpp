#include "weft/kernel/planner.h"

#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/text.h"

namespace weft {
namespace {

// Below this ratio either way the model is not trusted and the shape itself is measured.
constexpr double kClear = 1.3;

ProductKind kind_of(Product product, bool transposable) {
  switch (product) {
    case Product::kForward: return ProductKind::kForward;
    case Product::kBackwardWeight: return ProductKind::kBackwardWeight;
    case Product::kBackwardData:
      return transposable ? ProductKind::kBackwardData : ProductKind::kBackwardDataRagged;
  }
  return ProductKind::kForward;
}

ProductKind kind_of(const PlanRequest& request, Product product) {
  return request.masked_gradient && product == Product::kBackwardWeight
             ? ProductKind::kBackwardWeightMasked
             : kind_of(product, request.transposable);
}
ProductKind kind_of(const ConvRequest& request, Product product) {
  return kind_of(product, request.transposable);
}

bool masked_gradient(const PlanRequest& request) { return request.masked_gradient; }
bool masked_gradient(const ConvRequest&) { return false; }

// Packing that one product has to pay for. A sparse gradient is another one every time.
double packs_per_product(int products_per_pack, ProductKind kind) {
  if (kind == ProductKind::kBackwardWeight) return 1.0;
  return products_per_pack == 0 ? 0.0 : 1.0 / products_per_pack;
}

double ratio(const ProductTimes& times, double packs) {
  return times.dense / (times.sparse + packs * times.pack);
}

Choice parse_choice(const Json& value) {
  WEFT_CHECK(value == "dense" || value == "sparse",
             "saved plan: a choice is neither 'dense' nor 'sparse'");
  return value == "dense" ? Choice::kDense : Choice::kSparse;
}

}  // namespace

std::string_view choice_name(Choice choice) {
  return choice == Choice::kDense ? "dense" : "sparse";
}

PlanMode parse_plan_mode(std::string_view text) {
  if (text == "auto") return PlanMode::kAuto;
  if (text == "dense") return PlanMode::kDense;
  WEFT_CHECK(text == "sparse", "plan '{}': accepted are auto, dense and sparse", printable(text));
  return PlanMode::kSparse;
}

Planner::Planner(PlanMode mode, std::filesystem::path cache)
    : mode_(mode), calibration_(std::move(cache)) {}

void Planner::time(const PlanRequest& request, double packs, ProductPlan& plan) {
  const bool covered = Calibration::covers(request.shape);
  if (covered) {
    plan.predicted = calibration_.predict(plan.kind, request.shape, request.pattern);
    plan.times = *plan.predicted;
    const double found = ratio(plan.times, packs);
    if (found >= kClear || found <= 1.0 / kClear) return;
  }
  plan.times = calibration_.measure(plan.kind, request.shape, request.pattern);
  plan.measured = true;
}

void Planner::time(const ConvRequest& request, double, ProductPlan& plan) {
  plan.times = calibration_.measure(plan.kind, request.conv, request.pattern);
  plan.measured = true;
}

template <typename Request>
ProductPlan Planner::decide(const Request& request, Product product) {
  ProductPlan plan;
  plan.kind = kind_of(request, product);
  if (request.pattern.keep() == request.pattern.group()) {
    plan.choice = Choice::kDense;
    plan.reason = "nothing is pruned";
    return plan;
  }
  if (mode_ != PlanMode::kAuto) {
    plan.choice = mode_ == PlanMode::kDense ? Choice::kDense : Choice::kSparse;
    plan.reason = "asked for";
    return plan;
  }
  const double packs = packs_per_product(request.products_per_pack, plan.kind);
  time(request, packs, plan);
  const double found = ratio(plan.times, packs);
  plan.choice = found > kSparseMargin ? Choice::kSparse : Choice::kDense;
  plan.reason =
      fmt::format("{}: dense / (sparse{}) = {:.2f}", plan.measured ? "measured" : "predicted",
                  packs > 0 ? " + packing" : "", found);
  return plan;
}

template <typename Request>
LayerPlan Planner::plan_products(const Request& request, const std::string& shape) {
  WEFT_CHECK(request.products_per_pack >= 0, "{} products per packing: it must not be negative",
             request.products_per_pack);
  // Not the threads: a run is repeated with other threads too.
  const std::string key =
      fmt::format("{}/{}{}{}/{}", shape, request.pattern.str(), request.transposable ? "T" : "",
                  masked_gradient(request) ? "M" : "", request.products_per_pack);
  const auto known = plans_.find(key);
  if (known != plans_.end()) {
    LayerPlan plan = known->second;
    for (const Product product : kProducts) {  // not saved
      plan.products[static_cast<size_t>(product)].kind = kind_of(request, product);
    }
    return plan;
  }
  WEFT_CHECK(!only_saved_, "the saved plan has nothing for a layer of {} at {}", shape,
             request.pattern.str());
  LayerPlan plan;
  for (const Product product : kProducts) {
    plan.products[static_cast<size_t>(product)] = decide(request, product);
  }
  return plans_.emplace(key, std::move(plan)).first->second;
}

LayerPlan Planner::plan(const PlanRequest& request) {
  request.shape.check();
  return plan_products(request, request.shape.str());
}

LayerPlan Planner::plan(const ConvRequest& request) {
  check_measurable(request.conv);
  return plan_products(request, request.conv.spec());
}

std::string Planner::saved() const {
  Json plans = Json::object();
  for (const auto& [key, plan] : plans_) {
    plans.append(key, {choice_name(plan.products[0].choice), choice_name(plan.products[1].choice),
                       choice_name(plan.products[2].choice)});
  }
  return Json{{"plans", plans}, {"version", 1}}.dump();
}

Planner Planner::from_saved(std::string_view text) {
  Planner planner(PlanMode::kAuto, {});
  planner.remember(text);
  planner.only_saved_ = true;
  return planner;
}

void Planner::remember(std::string_view text) {
  const Json root = Json::parse_or_null(text);
  WEFT_CHECK(root.is_object() && root.contains("version") && root.contains("plans") &&
                 root["plans"].is_object(),
             "saved plan: it is not a JSON object with 'version' and 'plans'");
  WEFT_CHECK(root["version"] == 1, "saved plan: version {}, accepted is 1",
             printable(root["version"].dump()));
  for (const auto& [key, choices] : root["plans"].members()) {
    WEFT_CHECK(choices.is_array() && choices.size() == 3, "saved plan: '{}' has not three choices",
               printable(key));
    LayerPlan plan;
    for (const Product product : kProducts) {
      ProductPlan& one = plan.products[static_cast<size_t>(product)];
      one.choice = parse_choice(choices[static_cast<size_t>(product)]);
      one.reason = "saved";
    }
    plans_.emplace(key, plan);
  }
}

}  // namespace weft
