#include "weft/plan/planner.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/json.h"
#include "weft/core/text.h"
#include "weft/kernel/stream/stream.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/pack/tiles.h"

namespace weft {
namespace {

// Below this ratio either way the model is not trusted and the shape itself is measured.
constexpr double kClear = 1.3;

ProductForm form_of(const PlanRequest& request, Product product) {
  return ProductForm::of(product, request.transposable, request.masked_gradient);
}
ProductForm form_of(const ConvRequest& request, Product product) {
  return ProductForm::of(product, request.transposable, /*masked_gradient=*/false);
}

bool masked_gradient(const PlanRequest& request) { return request.masked_gradient; }
bool masked_gradient(const ConvRequest&) { return false; }

// Packing that one product has to pay for. A sparse gradient is another one every time.
double packs_per_product(int products_per_pack, const ProductForm& form) {
  if (form.packs_gradient()) return 1.0;
  return products_per_pack == 0 ? 0.0 : 1.0 / products_per_pack;
}

// All arithmetics of one product against each other.
class Race {
 public:
  explicit Race(double packs) : packs_(packs) {}

  void add(const Arithmetic& arithmetic, const ProductTimes& times) {
    const double dense = times.dense + packs_ * times.dense_pack;
    const double sparse = times.sparse + packs_ * times.pack;
    const bool close = !first_ && (is_close(dense, contest_.dense_ms) ||
                                   (times.has_sparse() && is_close(sparse, contest_.sparse_ms)));
    clear_ = clear_ && !close;
    if (first_ || dense < contest_.dense_ms) {
      contest_.dense = {arithmetic.storage, arithmetic.compute};
      contest_.dense_ms = dense;
      best_.dense = times.dense;
      best_.dense_pack = times.dense_pack;
    }
    if (first_ || sparse < contest_.sparse_ms) {
      contest_.sparse = arithmetic;
      contest_.sparse_ms = sparse;
      best_.sparse = times.sparse;
      best_.pack = times.pack;
    }
    first_ = false;
  }

  const Contest& contest() const { return contest_; }
  const ProductTimes& best() const { return best_; }
  // Neither dense and sparse nor two arithmetics are so near that a model should not decide.
  bool clear() const { return clear_ && !is_close(contest_.dense_ms, contest_.sparse_ms); }

 private:
  static bool is_close(double a, double b) { return a < kClear * b && b < kClear * a; }

  double packs_;
  bool first_ = true;
  bool clear_ = true;
  Contest contest_;
  ProductTimes best_;
};

// What a plan says of the arithmetic of bf16 numbers.
std::string note_on(const Arithmetic& arithmetic) {
  if (arithmetic.storage == Precision::kFp32) return "";
  if (arithmetic.compute == Precision::kBf16) return arithmetic.str();
  return fmt::format("bf16 in fp32 arithmetic{}",
                     tile_unit() == TileUnit::kNone ? ": " + tile_unit_lacks() : "");
}

Precision precision_of(const PlanRequest& request) { return request.precision; }
Precision precision_of(const ConvRequest&) { return Precision::kFp32; }

std::vector<Arithmetic> contestants(const ConvRequest&, const ProductForm&) {
  return {Arithmetic()};
}

bool has_stream(const std::vector<Arithmetic>& all) {
  return std::any_of(all.begin(), all.end(), [](const Arithmetic& one) { return one.stream; });
}

// The paths by their names, as they are printed and saved.
struct NamedPath {
  std::string_view name;
  Choice choice;
  Precision compute;
  bool stream;
};
constexpr NamedPath kPaths[] = {
    {"dense", Choice::kDense, Precision::kFp32, false},
    {"dense bf16", Choice::kDense, Precision::kBf16, false},
    {"sparse", Choice::kSparse, Precision::kFp32, false},
    {"sparse bf16", Choice::kSparse, Precision::kBf16, false},
    {"sparse stream", Choice::kSparse, Precision::kFp32, true},
};

void restore_choice(const Json& value, ProductPlan& plan) {
  for (const NamedPath& path : kPaths) {
    if (value != std::string(path.name)) continue;
    plan.choice = path.choice;
    plan.arithmetic.compute = path.compute;
    plan.arithmetic.stream = path.stream;
    plan.cause = PlanCause::kSaved;
    return;
  }
  throw Error(
      "saved plan: a choice is none of 'dense', 'sparse', 'sparse stream', 'dense bf16' and "
      "'sparse bf16'");
}

}  // namespace

std::vector<Arithmetic> contestants(const PlanRequest& request, const ProductForm& form) {
  const bool streams = form.product == Product::kForward && request.products_per_pack == 0 &&
                       request.shape.tokens <= kFewTokens;
  return arithmetics(request.precision, streams);
}

std::string_view choice_name(Choice choice) {
  return choice == Choice::kDense ? "dense" : "sparse";
}

std::string path_text(Choice choice, const Arithmetic& arithmetic) {
  for (const NamedPath& path : kPaths) {
    const bool stream =
        choice == Choice::kSparse && arithmetic.compute == Precision::kFp32 && arithmetic.stream;
    if (path.choice == choice && path.compute == arithmetic.compute && path.stream == stream) {
      return std::string(path.name);
    }
  }
  return std::string(choice_name(choice));
}

std::string ProductPlan::reason() const {
  switch (cause) {
    case PlanCause::kNothingPruned: return "nothing is pruned";
    case PlanCause::kAskedFor: return "asked for";
    case PlanCause::kSaved: return "saved";
    case PlanCause::kExactGradient: return "exact";
    case PlanCause::kMaskedGradient: return "masked";
    case PlanCause::kMeasured:
    case PlanCause::kPredicted: break;
  }
  return fmt::format("{}: dense / (sparse{}) = {:.2f}", measured ? "measured" : "predicted",
                     packs ? " + packing" : "", ratio);
}

PlanMode parse_plan_mode(std::string_view text) {
  if (text == "auto") return PlanMode::kAuto;
  if (text == "dense") return PlanMode::kDense;
  WEFT_CHECK(text == "sparse", "plan '{}': accepted are auto, dense and sparse", printable(text));
  return PlanMode::kSparse;
}

Planner::Planner(PlanMode mode, std::filesystem::path cache)
    : mode_(mode), timings_(std::move(cache)) {}

Contest Planner::time(const PlanRequest& request, double packs, ProductPlan& plan) {
  const std::vector<Arithmetic> all = contestants(request, plan.form);
  if (Timings::covers(request.shape)) {
    Race predicted(packs);
    for (const Arithmetic& one : all) {
      predicted.add(one, timings_.predict(plan.form, request.shape, request.pattern, one));
    }
    plan.predicted = plan.times = predicted.best();
    const bool small = predicted.contest().dense_ms < kSmallProductMs;
    if (!small && predicted.clear()) return predicted.contest();
  }
  Race measured(packs);
  for (const Arithmetic& one : all) {
    measured.add(one, timings_.measure(plan.form, request.shape, request.pattern, one));
  }
  plan.times = measured.best();
  plan.measured = true;
  return measured.contest();
}

Contest Planner::time(const ConvRequest& request, double packs, ProductPlan& plan) {
  Race measured(packs);
  measured.add({}, timings_.measure(plan.form, request.conv, request.pattern));
  plan.times = measured.best();
  plan.measured = true;
  return measured.contest();
}

template <typename Request>
ProductPlan Planner::decide(const Request& request, Product product) {
  ProductPlan plan;
  plan.form = form_of(request, product);
  const bool nothing_pruned = request.pattern.keep() == request.pattern.group();
  const bool given = nothing_pruned || mode_ != PlanMode::kAuto;
  if (given) {
    const bool sparse = !nothing_pruned && mode_ == PlanMode::kSparse;
    plan.choice = sparse ? Choice::kSparse : Choice::kDense;
    plan.arithmetic = forced_arithmetic(request, plan);
    plan.cause = nothing_pruned ? PlanCause::kNothingPruned : PlanCause::kAskedFor;
  } else {
    const double packs = packs_per_product(request.products_per_pack, plan.form);
    const Contest contest = time(request, packs, plan);
    const bool sparse = contest.ratio() > sparse_margin(contest.dense_ms, packs > 0);
    plan.choice = sparse ? Choice::kSparse : Choice::kDense;
    plan.arithmetic = sparse ? contest.sparse : contest.dense;
    plan.cause = plan.measured ? PlanCause::kMeasured : PlanCause::kPredicted;
    plan.ratio = contest.ratio();
    plan.packs = packs > 0;
  }
  plan.note = note_on(plan.arithmetic);
  return plan;
}

// Dense or sparse has been decided. AMX is taken without measuring, unless a stream competes; so is
// what was asked for (the emulated unit). AVX512-BF16 need not be
// faster than fp32, nor a stream than panels.
template <typename Request>
Arithmetic Planner::forced_arithmetic(const Request& request, const ProductPlan& plan) {
  const bool sparse = plan.choice == Choice::kSparse;
  const std::vector<Arithmetic> all = contestants(request, plan.form);
  const bool tiles = all.back().compute == Precision::kBf16 &&
                     (!sparse || has_tile_product(plan.form, request.pattern));
  const bool stream = sparse && has_stream(all);
  if (!tiles && !stream) return all.front();
  const TileUnit unit = tile_unit();
  if (tiles && (unit == TileUnit::kEmulated || (unit == TileUnit::kAmx && !stream))) {
    return all.back();
  }
  ProductPlan timed = plan;
  const double packs = packs_per_product(request.products_per_pack, plan.form);
  const Contest contest = time(request, packs, timed);
  return sparse ? contest.sparse : contest.dense;
}

template <typename Request>
LayerPlan Planner::plan_products(const Request& request, const std::string& shape) {
  WEFT_CHECK(request.products_per_pack >= 0, "{} products per packing: it must not be negative",
             request.products_per_pack);
  // Not the threads: a run is repeated with other threads too.
  const std::string key =
      fmt::format("{}/{}{}{}/{}{}", shape, request.pattern.str(), request.transposable ? "T" : "",
                  masked_gradient(request) ? "M" : "", request.products_per_pack,
                  precision_of(request) == Precision::kBf16 ? "/bf16" : "");
  const auto known = plans_.find(key);
  if (known != plans_.end()) {
    LayerPlan plan = known->second;
    for (const Product product : kProducts) {  // not saved
      ProductPlan& one = plan.products[static_cast<size_t>(product)];
      one.form = form_of(request, product);
      // A plan of another machine: the numbers stay bf16, what multiplies them is what is here.
      one.arithmetic.storage = precision_of(request);
      if (tile_unit() == TileUnit::kNone) one.arithmetic.compute = Precision::kFp32;
      if (!has_stream(contestants(request, one.form))) one.arithmetic.stream = false;
      one.note = note_on(one.arithmetic);
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
    Json choices = Json::array();
    for (const ProductPlan& one : plan.products) {
      choices.push_back(one.path());
    }
    plans.append(key, std::move(choices));
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
      const auto i = static_cast<size_t>(product);
      restore_choice(choices[i], plan.products[i]);
    }
    plans_.emplace(key, plan);
  }
}

}  // namespace weft
