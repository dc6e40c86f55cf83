#include "weft/layer/layer.h"

#include <algorithm>
#include <utility>

#include "weft/core/error.h"
#include "weft/layer/stopwatch.h"
#include "weft/mask/retained.h"
#include "weft/mask/row_order.h"
#include "weft/mask/solver.h"
#include "weft/mask/verify.h"
#include "weft/pack/group_check.h"
#include "weft/recipe/schedule.h"

namespace weft {
namespace {

// 0 if the layer has only now become sparse or dense.
int64_t changed_bits(const Mask& before, const Mask& after) {
  return before.rows() == after.rows() ? Mask::differing(before, after) : 0;
}

}  // namespace

double LayerTelemetry::figure(std::string_view name) const {
  for (const Figure& one : figures) {
    if (one.name == name) return one.value;
  }
  return 0.0;
}

std::string LayerTelemetry::plan_text() const {
  const auto text = [](const std::optional<Way>& way) { return way ? way->text() : "-"; };
  return fmt::format("{}/{}/{}", text(products[0]), text(products[1]), text(products[2]));
}

Layer::Layer(const WeightShape& shape, int64_t channel_groups)
    : shape_(shape), channel_groups_(channel_groups) {}

bool Layer::always_dense() const {
  return recipe().is_dense() || settings_.pattern.keep() == settings_.pattern.group();
}

std::string Layer::objection(const WeightShape& shape, int64_t channel_groups, const Recipe& recipe,
                             const Pattern& pattern) {
  const int64_t outs = shape.outs / channel_groups, group = pattern.group();
  if (shape.ins == 1 && shape.taps > 1) return "depthwise: one input per output";
  if (shape.ins < group) {
    return fmt::format("too narrow: {} inputs for groups of {}", shape.ins, group);
  }
  const bool permutes = recipe.backward->permutes_outputs;
  const bool transposable = recipe.forward->transposable;
  if ((transposable || permutes) && outs < group) {
    return fmt::format("too narrow: {} outputs for groups of {}", outs, group);
  }
  if (channel_groups == 1) return "";
  // Blocks of outputs, which a mask treats together, must not reach into the next group of
  // channels.
  if (permutes) return "groups of channels: a permutation would mix them";
  if (recipe.schedule.order_every > 0 && pattern.share() > 1) {
    return "groups of channels: a row order would mix them";
  }
  const auto shared_block = [](const Pattern& one) { return one.share() > 1 ? one.block() : 1; };
  const int weights = std::max(shared_block(pattern), transposable ? pattern.group() : 1);
  const int sampled = recipe.samples_gradient() ? shared_block(recipe.sample_pattern(pattern)) : 1;
  for (const int block : {weights, sampled}) {
    if (outs % block == 0) continue;
    return fmt::format("groups of {} output channels do not hold whole blocks of {}", outs, block);
  }
  return "";
}

void Layer::configure(const LayerSettings& settings) {
  settings.recipe.check(settings.pattern);
  WEFT_CHECK(
      !settings.recipe.finds_lambda(),
      "recipe '{}': decay=auto finds lambda in short trial runs, which `weft train` and `weft "
      "compare` make; give decay=gradient+lambda=X here",
      settings.recipe.name);
  WEFT_CHECK(
      settings.replicas >= 1 && settings.replica >= 0 && settings.replica < settings.replicas,
      "replica {} of {}", settings.replica, settings.replicas);
  WEFT_CHECK(settings.micro_batches >= 1, "{} micro-batches per step: there must be at least 1",
             settings.micro_batches);
  WEFT_CHECK(settings.total_steps > 0 || !settings.recipe.needs_total_steps(),
             "recipe '{}' has a schedule in shares of the run: total_steps is needed",
             settings.recipe.name);
  const bool full = settings.pattern.keep() == settings.pattern.group();
  if (!settings.recipe.is_dense() && !full && channel_groups_ > 1) {
    const std::string problem =
        objection(shape_, channel_groups_, settings.recipe, settings.pattern);
    WEFT_CHECK(problem.empty(), "a layer cannot have recipe '{}' at {}: {}", settings.recipe.name,
               settings.pattern.str(), problem);
  }
  settings_ = settings;
  if (!settings_.planner) settings_.planner = std::make_shared<Planner>();
  // With keep = group every method is dense training: no masks, no samples, β = 1.
  if (full) {
    const std::string name = settings_.recipe.name;
    const bool fp8 = settings_.recipe.fp8;
    settings_.recipe = Recipe::parse("dense");
    settings_.recipe.name = name;
    settings_.recipe.fp8 = fp8;
  }
  state_ = LayerState();
  state_.seed = settings.seed;
  state_.layer = settings.number;
  step_pending_ = training_pass_ = refresh_owed_ = false;
  changed_bits_ = refreshed_bits_ = 0;
  clear_times();
  ways_ = {};
  passing_for_training_ = training_pass_seen_ = has_measured_ = false;
  measured_.clear();
  forget_inputs();
  forget_operands();
}

std::optional<ScoreRow::Shape> Layer::score_shape() const {
  const ScoreRow* row = recipe().forward->scores;
  if (row == nullptr) return std::nullopt;
  return row->shape(shape_, settings_.pattern);
}

void Layer::first_scores(std::span<float> scores) const {
  const auto shape = score_shape();
  WEFT_CHECK(shape && static_cast<int64_t>(scores.size()) == shape->size(),
             "{}: {} scores, but its recipe has {}", label(), scores.size(),
             shape ? shape->size() : 0);
  recipe().forward->scores->first(shape_, settings_.pattern, scores);
}

bool Layer::trains_scores() const {
  const ScoreRow* row = recipe().forward->scores;
  return row != nullptr && row->are_trained(recipe(), state_.step, settings_.total_steps);
}

// ---- a step

LayerInput Layer::input_of(const LayerWeights& weights) const {
  LayerInput input;
  input.weights = weights.values;
  input.shape = shape_;
  input.pattern = settings_.pattern;
  input.recipe = &settings_.recipe;
  input.total_steps = settings_.total_steps;
  input.scores = weights.scores;
  return input;
}

void Layer::set_precision(Precision precision) {
  if (precision == settings_.precision) return;
  settings_.precision = precision;
  operands_valid_ = false;
}

void Layer::forget_operands() {
  ++stamp_;
  operands_valid_ = false;
}

void Layer::update(const LayerWeights& weights, Occasion occasion) {
  const Stopwatch watch(times_.mask);
  forget_operands();  // whatever happens: the state may change before something is found wrong
  WEFT_CHECK(weights.values != nullptr || (state_.begun && recipe().has_fixed_mask()),
             "{}: no weights to find a mask for", label());
  if (const auto shape = score_shape()) {
    WEFT_CHECK(static_cast<int64_t>(weights.scores.size()) == shape->size(),
               "{}: {} scores, but its recipe has {}", label(), weights.scores.size(),
               shape->size());
  }
  LayerInput input = input_of(weights);
  input.replaced = occasion == Occasion::kReplaced;
  Mask before;
  if (settings_.telemetry) before = state_.forward;
  try {
    if (occasion != Occasion::kTrainingPass) weft::bring_up_to_date(input, state_);
    if (occasion == Occasion::kTrainingPass || refresh_owed_) refresh(input, state_);
  } catch (const Error& error) {
    throw Error(fmt::format("{} at step {}: {}", label(), state_.step, error.what()));
  }
  if (settings_.telemetry) {
    refreshed_bits_ += changed_bits(before, state_.forward);
    if (occasion != Occasion::kTrainingPass) changed_bits_ = std::exchange(refreshed_bits_, 0);
  }
  step_pending_ = refresh_owed_ = false;
}

void Layer::bring_up_to_date(const LayerWeights& weights) { update(weights, Occasion::kStep); }

void Layer::weights_changed(const LayerWeights& weights) {
  forget_operands();
  if (state_.begun) update(weights, Occasion::kReplaced);
}

bool Layer::is_due(bool training) const {
  if (!state_.begun || step_pending_) return true;
  return training && state_.refreshed != state_.step && is_refresh_due(input_of({}), state_);
}

void Layer::begin_pass(const LayerWeights& weights, bool training) {
  if (!state_.begun || step_pending_) bring_up_to_date(weights);
  const bool after_evaluation = !std::exchange(passing_for_training_, training);
  if (!training) return;
  if (after_evaluation && has_measured_) {  // which packed what a trial is to pay for
    forget_packs();
    dense_forward_.forget();
    dense_backward_.forget();
  }
  training_pass_ = training_pass_seen_ = true;
  if (is_due(training)) update(weights, Occasion::kTrainingPass);
  state_.refreshed = state_.step;
}

void Layer::add_decay(float* weights, float* gradient, double learning_rate) const {
  const Recipe& r = recipe();
  if (r.decay->none() || !state_.sparse()) return;
  r.decay->apply({state_.forward, r.lambda, learning_rate, weights, gradient});
}

void Layer::add_decay(double* weights, double* gradient, double learning_rate) const {
  const Recipe& r = recipe();
  if (r.decay->none() || !state_.sparse()) return;
  r.decay->apply_in_double({state_.forward, r.lambda, learning_rate, weights, gradient});
}

void Layer::count_step() {
  hand_over_times();
  refresh_owed_ |= !std::exchange(training_pass_, false);
  ++state_.step;
  state_.call = 0;
  step_pending_ = true;
}

// ---- choices from outside

void Layer::give_row_order(std::vector<int64_t> order) {
  WEFT_CHECK(!state_.begun, "{}: a row order must be given before the first product", label());
  WEFT_CHECK(order.empty() || (settings_.pattern.share() > 1 && channel_groups_ == 1),
             "{}: a row order needs a shared pattern and one group of channels", label());
  require_row_order(order, shape_.outs, label());
  state_.row_order = std::move(order);
}

void Layer::give_mask(Mask mask) {
  const ForwardPart& part = *recipe().forward;
  WEFT_CHECK(recipe().backward->same() && part.scores == nullptr && part.values == nullptr,
             "{}: recipe '{}' takes no given mask: it chooses more than a mask", label(),
             recipe().name);
  const bool begins_sparse =
      !state_.begun && !is_dense_step(recipe(), state_.step, settings_.total_steps);
  WEFT_CHECK(state_.sparse() || begins_sparse, "{}: a mask can be given in the sparse phase only",
             label());
  WEFT_CHECK(mask.rows() == shape_.outs && mask.cols() == shape_.cols(),
             "{}: a mask of {} x {} for a weight of {} x {}", label(), mask.rows(), mask.cols(),
             shape_.outs, shape_.cols());
  require_pattern(mask, state_.row_order, label());
  forget_operands();
  state_.forward = std::move(mask);
  state_.begun = true;
  state_.refreshed = state_.step;
}

void Layer::require_pattern(const Mask& mask, const std::vector<int64_t>& row_order,
                            const std::string& context) const {
  const Pattern& pattern = settings_.pattern;
  const Mask placed = in_row_order(mask, row_order);
  int64_t violations = count_groups_in(placed, shape_, pattern).violations;
  if (recipe().forward->transposable) {
    violations += count_groups_out(placed, shape_, pattern).violations;
  }
  WEFT_CHECK(violations == 0, "{}: the mask violates {} in {} groups", context, pattern.str(),
             violations);
  if (pattern.share() > 1 && !recipe().has_fixed_mask()) require_sharing(placed, pattern);
}

// ---- what it did, and its state

LayerTelemetry Layer::telemetry(const float* weights) const {
  LayerTelemetry t;
  if (state_.sparse()) {
    t.forward_density = state_.forward.density();
    if (weights != nullptr) {
      t.retained = weft::retained(weights, shape_, state_.forward).fraction();
      if (!state_.row_order.empty()) t.retained_unpermuted = retained_unpermuted(weights);
    }
    t.backward_density = state_.backward.rows() > 0 ? state_.backward.density() : t.forward_density;
    if (t.forward_density > 0.0) t.backward_kept = t.backward_density / t.forward_density;
  }
  t.changed_bits = changed_bits_;
  t.flip_rate =
      static_cast<double>(changed_bits_) / static_cast<double>(shape_.outs * shape_.cols());
  const auto add_figures = recipe().forward->add_figures;
  if (add_figures != nullptr) add_figures(input_of({weights}), state_, t.figures);
  t.cosine = cosine_;
  t.times = times_;
  t.products = ways_;
  t.chosen = chosen_;
  t.measured = measured_step_;
  return t;
}

double Layer::retained_unpermuted(const float* weights) const {
  const Mask mask = find_mask(recipe().mask_solver(), weights, shape_, settings_.pattern);
  return weft::retained(weights, shape_, mask).fraction();
}

void Layer::clear_times() {
  times_ = {};
  measured_step_ = false;
  cosine_.reset();
}

std::optional<LayerPlan> Layer::sparse_plan() {
  if (always_dense()) return std::nullopt;
  std::optional<LayerPlan> plan = plan_for(operand_pattern());
  if (!plan) return plan;
  if (recipe().gradient_pattern) {
    const size_t gradient = static_cast<size_t>(Product::kBackwardWeight);
    plan->products[gradient] = plan_for(*recipe().gradient_pattern)->products[gradient];
  }
  const auto replace = [&](Product product, PlanCause cause) {
    ProductPlan& one = plan->products[static_cast<size_t>(product)];
    const ProductForm form = one.form;
    one = ProductPlan();
    one.form = form;
    one.cause = cause;
  };
  for (const Product product : kProducts) {
    const bool computed = ways_[static_cast<size_t>(product)].has_value();
    if (!computed && training_pass_seen_) replace(product, PlanCause::kNotComputed);
  }
  if (!recipe().samples_gradient() && !recipe().gradient->masked) {
    replace(Product::kBackwardWeight, PlanCause::kExactGradient);
  }
  return plan;
}

// Whose state it is: a layer with another recipe would make something else of it.
std::string Layer::state_owner() const {
  return always_dense() ? std::string(kDenseOwner)
                        : recipe().name + " at " + settings_.pattern.str();
}

StateShape Layer::state_shape() const {
  StateShape shape{shape_};
  if (const auto scores = score_shape()) {
    shape.alive_rows = scores->cells * scores->groups;
    shape.alive_cols = scores->candidates;
  }
  return shape;
}

std::vector<StateArray> Layer::save_state() const { return state_arrays(state_, state_owner()); }

void Layer::load_state(std::span<const StateArray> arrays) {
  const std::string context = fmt::format("the saved state of {}", label());
  LayerState state = state_from(arrays, state_shape(), state_owner(), context);
  // A run that was extended is at another place of its schedule than when it was saved: whether it
  // is dense or sparse there shows in the next training pass.
  if (state.sparse() && !keeps_more(state.step)) {
    require_pattern(state.forward, state.row_order, context);
  }
  state_ = std::move(state);
  step_pending_ = refresh_owed_ = false;
  training_pass_ = state_.call > 0 && state_.refreshed == state_.step;
  refreshed_bits_ = 0;
  measured_.clear();
  forget_operands();
}

}  // namespace weft
