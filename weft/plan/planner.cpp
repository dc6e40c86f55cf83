#include "weft/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "weft/core/error.h"
#include "weft/kernel/stream/stream.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/pack/tiles.h"

namespace weft {
namespace {

// Below this ratio either way the model is not trusted and the shape itself is measured.
constexpr double kClear = 1.3;

template <typename Request>
ProductForm form_of(const Request& request, Product product) {
  return ProductForm::of(product, request.transposable, request.masked_gradient);
}

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

// While nothing is decided, sparse results count: their kernels are weft's own, and compute the
// same for any number of threads.
constexpr Way kFixedWay{/*sparse=*/true, Precision::kFp32};

// The ways of a product that trains. Its first one is dense.
template <typename Request>
std::vector<Way> ways_of(const Request& request, const ProductForm& form) {
  std::vector<Way> dense, sparse;
  for (const Arithmetic& one : contestants(request, form)) {
    if (one.stream) continue;
    dense.push_back({false, one.compute});
    const bool in_tiles = one.compute == Precision::kBf16;
    if (!in_tiles || has_tile_product(form, request.pattern)) sparse.push_back({true, one.compute});
  }
  dense.insert(dense.end(), sparse.begin(), sparse.end());
  return dense;
}

// What tells products apart. Not the threads: a run is repeated with other threads too.
std::string key_of(const PlanRequest& request, const ProductForm& form) {
  return fmt::format("{}/{}/{}{}/{}", request.shape.str(), request.pattern.str(),
                     request.products_per_pack,
                     request.precision == Precision::kBf16 ? "/bf16" : "", form.name());
}
std::string key_of(const ConvRequest& request, const ProductForm& form) {
  return fmt::format("{}/{}/{}/{}", request.conv.spec(), request.pattern.str(),
                     request.products_per_pack, form.name());
}
std::string shape_of(const PlanRequest& request) { return request.shape.str(); }
std::string shape_of(const ConvRequest& request) { return request.conv.spec(); }
int64_t size_of(const PlanRequest& request) { return request.shape.tokens; }
int64_t size_of(const ConvRequest& request) { return request.conv.images; }
// The same for any number of tokens or images.
std::string weights_of(PlanRequest request, const ProductForm& form) {
  request.shape.tokens = 1;
  return key_of(request, form);
}
std::string weights_of(ConvRequest request, const ProductForm& form) {
  request.conv.images = 1;
  return key_of(request, form);
}
void check(const PlanRequest& request) { request.shape.check(); }
void check(const ConvRequest& request) { check_measurable(request.conv); }

size_t index_of(Product product) { return static_cast<size_t>(product); }

}  // namespace

std::vector<Arithmetic> contestants(const PlanRequest& request, const ProductForm& form) {
  const bool streams = form.product == Product::kForward && request.products_per_pack == 0 &&
                       request.shape.tokens <= kFewTokens;
  return arithmetics(request.precision, streams);
}

bool LayerPlan::is_decided() const {
  return std::ranges::none_of(
      products, [](const ProductPlan& one) { return one.cause == PlanCause::kMeasuring; });
}

bool LayerPlan::has_paths_of(const LayerPlan& other) const {
  return std::ranges::equal(products, other.products, {}, &ProductPlan::path, &ProductPlan::path);
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

// Nothing is left to decide but an arithmetic.
template <typename Request>
bool Planner::is_given(const Request& request) const {
  return request.pattern.keep() == request.pattern.group() || mode_ != PlanMode::kAuto;
}

template <typename Request>
ProductPlan Planner::decide(const Request& request, Product product) {
  ProductPlan plan;
  plan.form = form_of(request, product);
  const bool nothing_pruned = request.pattern.keep() == request.pattern.group();
  if (is_given(request)) {
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
void Planner::require_not_only_saved(const Request& request) const {
  WEFT_CHECK(!only_saved_, "the saved plan has nothing for a layer of {} at {}", shape_of(request),
             request.pattern.str());
}

namespace {

// A plan as it was saved, perhaps on another machine: the numbers stay bf16, what multiplies them
// is what is here.
template <typename Request>
ProductPlan for_this_machine(ProductPlan plan, const Request& request) {
  plan.arithmetic.storage = precision_of(request);
  if (tile_unit() == TileUnit::kNone) plan.arithmetic.compute = Precision::kFp32;
  if (!has_stream(contestants(request, plan.form))) plan.arithmetic.stream = false;
  plan.note = note_on(plan.arithmetic);
  return plan;
}

template <typename Request>
void check_request(const Request& request) {
  check(request);
  WEFT_CHECK(request.products_per_pack >= 0, "{} products per packing: it must not be negative",
             request.products_per_pack);
}

}  // namespace

// ---- asked once

template <typename Request>
LayerPlan Planner::plan_once(const Request& request) {
  check_request(request);
  LayerPlan found;
  for (const Product product : kProducts) {
    const ProductForm form = form_of(request, product);
    const std::string key = key_of(request, form);
    const auto known = entries_.find(key);
    if (known == entries_.end() || !known->second.decided) {
      require_not_only_saved(request);
      Entry entry;
      entry.weights = weights_of(request, form);
      entry.size = size_of(request);
      entry.plan = decide(request, product);
      entry.decided = true;
      entries_.insert_or_assign(key, std::move(entry));
      ++revision_;
    }
    ProductPlan& plan = found.products[index_of(product)];
    plan = entries_[key].plan;
    plan.form = form;  // not saved
    plan = for_this_machine(plan, request);
  }
  return found;
}

LayerPlan Planner::plan(const PlanRequest& request) { return plan_once(request); }
LayerPlan Planner::plan(const ConvRequest& request) { return plan_once(request); }

// ---- asked by layers

namespace {

template <typename Request>
ProductPlan plan_while_measuring(const Request& request, const ProductForm& form) {
  ProductPlan plan;
  plan.form = form;
  plan.choice = Choice::kSparse;
  plan.arithmetic = {precision_of(request), Precision::kFp32};
  plan.packs = packs_per_product(request.products_per_pack, form) > 0.0;
  plan.cause = PlanCause::kMeasuring;
  return plan;
}

}  // namespace

template <typename Request>
void Planner::begin_trial(const Request& request, int64_t step, Entry& entry) {
  entry.trial.emplace(ways_of(request, entry.plan.form));
  entry.warm_up = step;
  // A trial that was cut short when it was saved keeps its end, if there is time until then.
  entry.since = std::max(entry.since, step + Trial::kSteps);
  ++revision_;
}

template <typename Request>
Planner::Entry& Planner::entry_for(const Request& request, Product product, int64_t step) {
  const ProductForm form = form_of(request, product);
  const std::string key = key_of(request, form);
  const auto found = entries_.find(key);
  if (found != entries_.end()) {
    Entry& entry = found->second;
    entry.plan.form = form;
    if (!entry.decided && !entry.trial) {
      entry.plan = plan_while_measuring(request, form);
      begin_trial(request, step, entry);
    }
    return entry;
  }
  check_request(request);
  require_not_only_saved(request);
  Entry entry;
  entry.weights = weights_of(request, form);
  entry.size = size_of(request);
  if (is_given(request)) {
    entry.plan = decide(request, product);
    entry.decided = true;
    ++revision_;
  } else {
    entry.begun = step + 1;
    entry.plan = plan_while_measuring(request, form);
    begin_trial(request, step, entry);
  }
  return entries_.emplace(key, std::move(entry)).first->second;
}

namespace {

// How far apart two numbers of tokens or images are: 0 if they are equal, log 2 for twice as many.
double distance(int64_t a, int64_t b) {
  return std::abs(std::log(static_cast<double>(a) / static_cast<double>(b)));
}

}  // namespace

// A batch that is somewhat smaller or larger than others, as the last one of an epoch, needs no
// trial of its own.
const Planner::Entry* Planner::similar(const std::string& key, const std::string& weights,
                                       int64_t size) const {
  const auto exact = entries_.find(key);
  if (exact != entries_.end()) return &exact->second;
  const Entry* nearest = nullptr;
  const double close = std::log(2.0);
  for (const auto& [other, entry] : entries_) {
    if (entry.weights != weights || distance(entry.size, size) > close) continue;
    if (nearest == nullptr || distance(entry.size, size) < distance(nearest->size, size)) {
      nearest = &entry;
    }
  }
  return nearest;
}

template <typename Request>
Route Planner::route_of(const Request& request, Product product, int64_t step, const void* layer) {
  const ProductForm form = form_of(request, product);
  const std::string key = key_of(request, form);
  if (!is_given(request) && !only_saved_) {
    const Entry* other = similar(key, weights_of(request, form), size_of(request));
    if (other != nullptr && other->size != size_of(request)) {
      if (!other->decided || step < other->since) return {kFixedWay, /*chosen=*/false};
      Entry same = *other;
      same.size = size_of(request);
      same.begun = step + 1;
      same.since = step;
      entries_.emplace(key, std::move(same));
      ++revision_;
    }
  }
  Entry& entry = entry_for(request, product, step);
  if (!entry.decided && step >= entry.since) judge(entry, step);
  if (entry.decided) {
    if (step < entry.since) return {kFixedWay, /*chosen=*/false};
    return {for_this_machine(entry.plan, request).way()};
  }
  // The layer that measures was not used in the last step, or belongs to a run that waits for its
  // turn: another one goes on.
  if (entry.layer != layer && step > entry.last_step + 1) entry.layer = layer;
  if (entry.layer != layer) return {kFixedWay, /*chosen=*/false};
  entry.last_step = step;
  return {kFixedWay, /*chosen=*/false, entry.trial->ways()};
}

Route Planner::route(const PlanRequest& request, Product product, int64_t step, const void* layer) {
  return route_of(request, product, step, layer);
}
Route Planner::route(const ConvRequest& request, Product product, int64_t step, const void* layer) {
  return route_of(request, product, step, layer);
}

template <typename Request>
void Planner::add_times_of(const Request& request, Product product, int64_t step,
                           std::span<const double> ms) {
  const auto found = entries_.find(key_of(request, form_of(request, product)));
  if (found == entries_.end() || !found->second.trial) return;
  Entry& entry = found->second;
  if (step > entry.warm_up) entry.trial->add(ms);
}

void Planner::add_times(const PlanRequest& request, Product product, int64_t step,
                        std::span<const double> ms) {
  add_times_of(request, product, step, ms);
}
void Planner::add_times(const ConvRequest& request, Product product, int64_t step,
                        std::span<const double> ms) {
  add_times_of(request, product, step, ms);
}

void Planner::judge(Entry& entry, int64_t step) {
  if (follows_) return;
  ++revision_;
  const auto go_on = [&] { entry.since = step + Trial::kSteps; };
  // Hardly ever computed, as products of a batch that is smaller than the others.
  if (entry.trial->samples() < Trial::kFewest) return go_on();
  const Trial::Verdict verdict = entry.trial->verdict();
  ProductPlan& plan = entry.plan;
  const double margin = sparse_margin(verdict.dense_ms, plan.packs);
  const bool close = verdict.low <= margin && verdict.high > margin;
  if (close && !std::exchange(entry.extended, true)) return go_on();
  const bool sparse = verdict.ratio > margin;
  plan.choice = sparse ? Choice::kSparse : Choice::kDense;
  plan.arithmetic.compute = sparse ? verdict.sparse.compute : verdict.dense.compute;
  plan.times = {.dense = verdict.dense_ms, .sparse = verdict.sparse_ms};
  plan.ratio = verdict.ratio;
  plan.ratio_low = verdict.low;
  plan.ratio_high = verdict.high;
  plan.measured = true;
  plan.cause = PlanCause::kTrial;
  entry.trial.reset();
  entry.decided = true;
  entry.since = std::max(entry.since, step);
  if (measured_before(step)) return;
  spare_ = {};
  spare_bf16_ = {};
}

void Planner::settle(int64_t step) {
  for (auto& [key, entry] : entries_) {
    const bool is_used = entry.last_step + 1 >= step;
    if (entry.trial && is_used && step >= entry.since) judge(entry, step);
  }
}

// A trial may be left unfinished: the products of lbc change with its masks.
bool Planner::measured_before(int64_t step) const {
  return std::ranges::any_of(entries_, [&](const auto& one) {
    const Entry& entry = one.second;
    return entry.trial && entry.last_step + 1 >= step;
  });
}

void Planner::drop_trials() {
  std::erase_if(entries_, [](const auto& one) { return !one.second.decided; });
  ++revision_;
}

void Planner::apply_at_once() {
  for (auto& [key, entry] : entries_) {
    entry.begun = 0;
    if (entry.decided) entry.since = 0;
  }
  ++revision_;
}

template <>
AlignedBuffer<float>& Planner::spare() {
  return spare_;
}
template <>
AlignedBuffer<Bf16>& Planner::spare() {
  return spare_bf16_;
}

// Of those that training had met by this step: a resumed run knows of later ones.
const Planner::Entry* Planner::nearest_for_evaluation(const std::string& weights, int64_t size,
                                                      int64_t step) const {
  const Entry* nearest = nullptr;
  for (const auto& [key, entry] : entries_) {
    if (entry.weights != weights || step < entry.begun) continue;
    if (nearest == nullptr || distance(entry.size, size) < distance(nearest->size, size)) {
      nearest = &entry;
    }
  }
  return nearest;
}

template <typename Request>
Way Planner::way_in_evaluation(const Request& request, Product product, int64_t step) {
  if (is_given(request)) {
    return for_this_machine(entry_for(request, product, step).plan, request).way();
  }
  const ProductForm form = form_of(request, product);
  const std::string weights = weights_of(request, form);
  const Entry* nearest = nearest_for_evaluation(weights, size_of(request), step);
  if (nearest != nullptr) {
    const bool follows = nearest->decided && step >= nearest->since;
    return follows ? for_this_machine(nearest->plan, request).way() : kFixedWay;
  }
  if (previews_) return kFixedWay;
  const std::string key = key_of(request, form);
  auto found = untrained_.find(key);
  if (found == untrained_.end()) {
    check_request(request);
    require_not_only_saved(request);
    found = untrained_.emplace(key, decide(request, product)).first;
    ++revision_;
  }
  return for_this_machine(found->second, request).way();
}

Way Planner::evaluation_way(const PlanRequest& request, Product product, int64_t step) {
  return way_in_evaluation(request, product, step);
}
Way Planner::evaluation_way(const ConvRequest& request, Product product, int64_t step) {
  return way_in_evaluation(request, product, step);
}

template <typename Request>
LayerPlan Planner::known_plan(const Request& request) const {
  LayerPlan known;
  for (const Product product : kProducts) {
    const ProductForm form = form_of(request, product);
    const Entry* found =
        similar(key_of(request, form), weights_of(request, form), size_of(request));
    const bool decided = found != nullptr && found->decided;
    ProductPlan plan = decided ? found->plan : plan_while_measuring(request, form);
    plan.form = form;  // not saved
    known.products[index_of(product)] = for_this_machine(plan, request);
  }
  return known;
}

LayerPlan Planner::known(const PlanRequest& request) const { return known_plan(request); }
LayerPlan Planner::known(const ConvRequest& request) const { return known_plan(request); }

}  // namespace weft
