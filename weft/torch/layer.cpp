#include "weft/torch/layer.h"

#include <torch/autograd.h>

#include <bit>
#include <chrono>
#include <cstring>
#include <set>
#include <utility>

#include "weft/mask/retained.h"
#include "weft/mask/row_order.h"
#include "weft/mask/solver.h"
#include "weft/mask/taps.h"
#include "weft/pack/group_check.h"
#include "weft/recipe/decay.h"
#include "weft/recipe/schedule.h"
#include "weft/recipe/soft_threshold.h"
#include "weft/torch/state_tensors.h"
#include "weft/torch/tensor_math.h"

namespace weft {

namespace {

thread_local Layer::FiniteWatch* finite_watch = nullptr;
thread_local Layer::InputWatch* input_watch = nullptr;

// A few hundred weights, scattered over all rows and columns, stand for all: an optimiser moves
// nearly every one of them.
uint64_t fingerprint_of(const torch::Tensor& weight) {
  const torch::Tensor flat = weight.detach().reshape({-1});
  if (flat.numel() == 0) return 0;
  torch::Tensor places = torch::empty({256}, torch::kLong);
  for (int64_t i = 0; i < places.numel(); ++i) {
    places.data_ptr<int64_t>()[i] =
        static_cast<int64_t>((static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15 >> 16) %
                             static_cast<uint64_t>(flat.numel()));
  }
  const torch::Tensor some =
      flat.index_select(0, places.to(flat.device())).to(torch::kCPU, torch::kDouble).contiguous();
  const auto* values = some.data_ptr<double>();
  uint64_t hash = static_cast<uint64_t>(flat.numel());
  for (int64_t i = 0; i < some.numel(); ++i) {
    hash = (hash ^ std::bit_cast<uint64_t>(values[i])) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

// 0 if the layer has only now become sparse or dense.
int64_t changed_bits(const Mask& before, const Mask& after) {
  return before.rows() == after.rows() ? Mask::differing(before, after) : 0;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double cosine(const torch::Tensor& a, const torch::Tensor& b) {
  const double product = (a.to(torch::kDouble) * b.to(torch::kDouble)).sum().item<double>();
  const double norms =
      a.to(torch::kDouble).norm().item<double>() * b.to(torch::kDouble).norm().item<double>();
  return norms > 0.0 ? product / norms : 1.0;
}

}  // namespace

std::string_view path_name(LayerPath path) {
  return path == LayerPath::kPacked ? "packed" : "plain";
}

// The layer that a backward pass belongs to, kept alive by the graph.
struct LayerHandle : torch::CustomClassHolder {
  LayerHandle(std::shared_ptr<Layer> layer, int64_t stamp, int64_t call)
      : layer(std::move(layer)), stamp(stamp), call(call) {}
  std::shared_ptr<Layer> layer;
  int64_t stamp;
  int64_t call;
};

// The formula on top of layer.h, and nothing else.
class LayerFunction : public torch::autograd::Function<LayerFunction> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               torch::Tensor /*weight*/, torch::Tensor /*bias*/,
                               torch::Tensor /*scores*/, c10::intrusive_ptr<LayerHandle> handle) {
    context->save_for_backward({x});
    context->saved_data["layer"] = c10::IValue::make_capsule(handle);
    return handle->layer->forward_product(x.contiguous());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    WEFT_CHECK(!torch::GradMode::is_enabled(),
               "second derivatives of a weft layer are not defined: its operands are packed, and "
               "its gradient goes straight through; call backward() without create_graph");
    const auto handle =
        c10::static_intrusive_pointer_cast<LayerHandle>(context->saved_data["layer"].toCapsule());
    Layer& layer = *handle->layer;
    WEFT_CHECK(handle->stamp == layer.stamp_,
               "a backward pass through {} after its weights have changed: run the forward pass "
               "again after every optimiser step",
               layer.label());
    layer.require_same_weights();
    const torch::Tensor x = context->get_saved_variables()[0].contiguous();
    const torch::Tensor g = gradients[0].to(x.scalar_type()).contiguous();
    torch::Tensor dx, dw, db, ds;
    if (context->needs_input_grad(0)) dx = layer.backward_data_product(g, x);
    const bool learns_scores = layer.scores.defined() && context->needs_input_grad(3);
    if (context->needs_input_grad(1) || learns_scores) {
      dw = layer.backward_weight_product(g, x, handle->call);
    }
    if (layer.bias.defined() && context->needs_input_grad(2)) db = layer.bias_gradient(g);
    if (learns_scores) ds = layer.score_gradient(dw);
    return {dx, dw, db, ds, torch::Tensor()};
  }
};

bool Layer::always_dense() const {
  return settings_.recipe.forward == ForwardPart::kDense ||
         settings_.pattern.keep() == settings_.pattern.group();
}

LayerPath Layer::path() const {
  const bool packed = weight.device().is_cpu() && weight.scalar_type() == torch::kFloat;
  return packed && !settings_.force_plain ? LayerPath::kPacked : LayerPath::kPlain;
}

void Layer::register_state() {
  saved_mask_ = register_buffer("mask", empty_words());
  saved_backward_mask_ = register_buffer("backward_mask", empty_words());
  saved_permutation_ = register_buffer("permutation", empty_words());
  saved_row_order_ = register_buffer("row_order", empty_words());
  saved_alive_ = register_buffer("alive", empty_words());
  saved_counters_ = register_buffer("counters", empty_words());
  configure({});
}

std::string Layer::objection(const WeightShape& shape, int64_t channel_groups, const Recipe& recipe,
                             const Pattern& pattern) {
  const int64_t outs = shape.outs / channel_groups, group = pattern.group();
  if (shape.ins == 1 && shape.taps > 1) return "depthwise: one input per output";
  if (shape.ins < group) {
    return fmt::format("too narrow: {} inputs, and groups are of {}", shape.ins, group);
  }
  const bool bi_mask = recipe.backward == BackwardPart::kBiMask;
  const bool transposable = recipe.forward == ForwardPart::kTransposable;
  if ((transposable || bi_mask) && outs < group) {
    return fmt::format("too narrow: {} outputs, and groups are of {}", outs, group);
  }
  if (channel_groups == 1) return "";
  // Blocks of outputs, which a mask treats together, must not reach into the next group of
  // channels.
  if (bi_mask) return "groups of channels: a permutation would mix them";
  if (recipe.schedule.order_every > 0 && pattern.share() > 1) {
    return "groups of channels: a row order would mix them";
  }
  const int64_t block = pattern.share() > 1 ? pattern.block() : transposable ? group : 1;
  if (outs % block != 0) {
    return fmt::format("groups of {} output channels do not hold whole blocks of {}", outs, block);
  }
  return "";
}

void Layer::configure(const LayerSettings& settings) {
  settings.recipe.check(settings.pattern);
  WEFT_CHECK(
      settings.replicas >= 1 && settings.replica >= 0 && settings.replica < settings.replicas,
      "replica {} of {}", settings.replica, settings.replicas);
  WEFT_CHECK(settings.micro_batches >= 1, "{} micro-batches per step: there must be at least 1",
             settings.micro_batches);
  WEFT_CHECK(settings.total_steps > 0 || !settings.recipe.needs_total_steps(),
             "recipe '{}' has a schedule in shares of the run: total_steps must be given",
             settings.recipe.name);
  const bool sparse = settings.recipe.forward != ForwardPart::kDense &&
                      settings.pattern.keep() < settings.pattern.group();
  if (sparse && channel_groups() > 1) {
    const std::string problem =
        objection(weight_shape(), channel_groups(), settings.recipe, settings.pattern);
    WEFT_CHECK(problem.empty(), "a layer cannot have recipe '{}' at {}: {}", settings.recipe.name,
               settings.pattern.str(), problem);
  }
  settings_ = settings;
  if (!settings_.planner) settings_.planner = std::make_shared<Planner>();
  // With keep = group every method is dense training: no masks, no samples, β = 1.
  if (settings_.pattern.keep() == settings_.pattern.group()) {
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
  cosine_.reset();
  reset_products(settings_.planner, settings_.micro_batches);
  reset_scores();
  forget_operands();
  store_state();
}

void Layer::forget_operands() {
  ++stamp_;
  operands_valid_ = false;
}

void Layer::reset_scores() {
  if (scores.defined()) parameters_.erase("scores");
  scores = torch::Tensor();
  if (settings_.recipe.forward != ForwardPart::kUnion) return;
  const BestCombination lbc(weight_shape(), settings_.pattern);
  torch::Tensor first = torch::empty({lbc.cells(), lbc.groups(), lbc.candidates()}, torch::kFloat);
  lbc.first_scores({first.data_ptr<float>(), static_cast<size_t>(first.numel())});
  scores = register_parameter("scores", first.to(weight.device(), weight.scalar_type()));
}

torch::Tensor Layer::host_weights() const {
  return weight.detach().to(torch::kCPU, torch::kFloat).contiguous();
}

LayerInput Layer::input_of(const float* weights) const {
  LayerInput input;
  input.weights = weights;
  input.shape = weight_shape();
  input.pattern = settings_.pattern;
  input.recipe = &settings_.recipe;
  input.total_steps = settings_.total_steps;
  return input;
}

void Layer::update(Occasion occasion) {
  const auto start = std::chrono::steady_clock::now();
  const torch::Tensor host = host_weights();
  LayerInput input = input_of(host.data_ptr<float>());
  input.replaced = occasion == Occasion::kReplaced;
  torch::Tensor host_scores;
  if (scores.defined()) {
    host_scores = scores.detach().to(torch::kCPU, torch::kFloat).contiguous();
    input.scores = {host_scores.data_ptr<float>(), static_cast<size_t>(host_scores.numel())};
  }
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
  freeze_scores_at_the_end();
  products().times().mask += seconds_since(start);
  step_pending_ = refresh_owed_ = false;
  forget_operands();
  store_state();
}

void Layer::bring_up_to_date() { update(Occasion::kStep); }

void Layer::begin_training_pass() {
  training_pass_ = true;
  if (state_.refreshed == state_.step) return;
  if (is_refresh_due(input_of(nullptr), state_)) {
    update(Occasion::kTrainingPass);
  } else {
    state_.refreshed = state_.step;
  }
}

bool Layer::prepared_for_weights() const {
  return operands_valid_ && fingerprint_ == fingerprint_of(weight);
}

void Layer::require_same_weights() const {
  WEFT_CHECK(fingerprint_ == fingerprint_of(weight),
             "the weights of {} changed, and not through weft::step(): take optimiser steps with "
             "it, and after loading or editing weights call weights_changed()",
             label());
  WEFT_CHECK(data_ == weight.data_ptr(),
             "the weights of {} have been put elsewhere between its forward and backward pass",
             label());
}

void Layer::prepare(bool training) {
  if (!state_.begun || step_pending_) bring_up_to_date();
  if (training) begin_training_pass();
  // Equal weights in another place: operands may still point to the old one.
  if (operands_valid_ && data_ != weight.data_ptr()) forget_operands();
  if (operands_valid_) return require_same_weights();
  make_operands();
  fingerprint_ = fingerprint_of(weight);
  data_ = weight.data_ptr();
  operands_valid_ = true;
}

void Layer::make_operands() {
  const torch::NoGradGuard no_grad;
  if (path() == LayerPath::kPlain) {
    plain_forward_ = plain_operand(state_.forward);
    plain_backward_ = state_.backward.rows() > 0
                          ? plain_forward_ * mask_tensor(state_.backward, weight)
                          : plain_forward_;
    if (settings_.recipe.fp8) {
      plain_forward_ = rounded_to_fp8(plain_forward_, Fp8::kE4m3);
      plain_backward_ = rounded_to_fp8(plain_backward_, Fp8::kE5m2);
    }
    plain_forward_ = plain_forward_.to(product_type());
    plain_backward_ = plain_backward_.to(product_type());
    return;
  }
  make_packed_operands();
}

void Layer::make_packed_operands() {
  WEFT_CHECK(weight.is_contiguous(), "the weight of {} is not contiguous", label());
  const auto start = std::chrono::steady_clock::now();
  const float* values = weight.data_ptr<float>();
  const size_t size = static_cast<size_t>(weight.numel());
  const bool sparse = state_.sparse();
  const bool own_values = settings_.recipe.fp8 || (sparse && !values_are_weights(settings_.recipe));
  LayerOperands operands;
  operands.forward.values = operands.backward.values = values;
  if (own_values) {
    forward_values_.reserve(size);
    const std::span<float> forward(forward_values_.data(), size);
    if (sparse) {
      forward_values(input_of(values), state_, forward.data());
    } else {
      std::memcpy(forward.data(), values, size * sizeof(float));
    }
    operands.forward.values = operands.backward.values = forward.data();
    if (settings_.recipe.fp8) {
      backward_values_.reserve(size);
      const std::span<float> backward(backward_values_.data(), size);
      round_to_fp8(forward, Fp8::kE5m2, backward);
      round_to_fp8(forward, Fp8::kE4m3, forward);
      operands.backward.values = backward.data();
    }
  }
  if (sparse) describe_operands(operands);
  operands.forward.precision = operands.backward.precision = settings_.precision;
  products().times().mask += seconds_since(start);
  products().set(operands);
}

// A fixed mask is without zeros, and rows that share (or inputs, along outputs) may have zeros of
// their own: then they share nothing, and operands are packed row by row.
Pattern Layer::operand_pattern() const {
  const Pattern& pattern = settings_.pattern;
  if (pattern.share() == 1 || !settings_.recipe.has_fixed_mask() || !state_.sparse()) {
    return pattern;
  }
  bool alike = rows_share(in_row_order(state_.forward, state_.row_order), pattern);
  if (settings_.recipe.forward == ForwardPart::kTransposable) {
    const WeightShape shape = weight_shape();
    for (int64_t tap = 0; alike && tap < shape.taps; ++tap) {
      alike = rows_share(take_tap(state_.forward, shape, tap).transposed(), pattern);
    }
  }
  return alike ? pattern : Pattern(pattern.keep(), pattern.group());
}

void Layer::describe_operands(LayerOperands& operands) const {
  const Pattern pattern = operand_pattern();
  const Pattern unshared(pattern.keep(), pattern.group());
  const bool transposable = settings_.recipe.forward == ForwardPart::kTransposable;
  // A union of candidates keeps more than N:M until the last are removed.
  const bool keeps_more =
      settings_.recipe.forward == ForwardPart::kUnion &&
      removal_progress(settings_.recipe, state_.step, settings_.total_steps) < 1.0;
  operands.forward.mask = &state_.forward;
  operands.forward.pattern = pattern;
  operands.forward.ragged = keeps_more;
  if (pattern.share() > 1) operands.forward.row_order = state_.row_order;
  operands.backward.mask = state_.backward.rows() > 0 ? &state_.backward : &state_.forward;
  operands.backward.pattern = transposable ? pattern : unshared;
  // Under a row order outputs are N:M in their places, and the depth of Wᵀ is packed as it lies;
  // its rows, the inputs, share all the same.
  operands.backward.ragged = !transposable || !state_.row_order.empty();
  operands.transposable = transposable;
  operands.planned = pattern;
  operands.masked_gradient = settings_.recipe.gradient == GradientPart::kMasked;
  if (keeps_more) {  // the pattern of its density stands for it
    const double kept = state_.forward.density() * pattern.group();
    const int keep =
        std::clamp(static_cast<int>(std::ceil(kept - 0.05)), pattern.keep(), pattern.group());
    operands.planned = Pattern(keep, pattern.group(), pattern.share());
  }
}

torch::Tensor Layer::plain_operand(const Mask& mask) const {
  if (mask.rows() == 0) return weight.detach();
  if (values_are_weights(settings_.recipe)) return weight.detach() * mask_tensor(mask, weight);
  // In the arithmetic of the packed path, so that what is exported has the bits that were trained.
  const bool wide = weight.scalar_type() == torch::kDouble;
  const torch::Tensor host =
      weight.detach().to(torch::kCPU, wide ? torch::kDouble : torch::kFloat).contiguous();
  torch::Tensor soft = torch::empty_like(host);
  const auto shrink = [&]<typename T>(T) {
    soft_threshold(host.data_ptr<T>(), mask, weight_shape(), settings_.pattern, state_.beta,
                   soft.data_ptr<T>(), state_.row_order);
  };
  wide ? shrink(double()) : shrink(float());
  return soft.to(weight.device(), weight.scalar_type());
}

torch::Tensor Layer::effective_weight() {
  const torch::NoGradGuard no_grad;
  prepare(/*training=*/false);
  return plain_operand(state_.forward).clone();
}

torch::Tensor Layer::run(const torch::Tensor& input) {
  const torch::Dtype type = input.scalar_type();
  WEFT_CHECK(
      input.device() == weight.device() && (type == weight.scalar_type() || type == product_type()),
      "{}: an input of {} on {} for weights of {} on {}{}", label(), c10::toString(type),
      input.device().str(), c10::toString(weight.scalar_type()), weight.device().str(),
      in_bf16() ? " in bf16" : "");
  const torch::Tensor x = input.to(product_type());
  prepare(/*training=*/torch::GradMode::is_enabled() && is_training());
  if (input_watch != nullptr) input_watch->see_(*this, [&] { return rows_of(x); });
  if (!torch::GradMode::is_enabled()) return forward_product(x.contiguous());
  const auto handle = c10::make_intrusive<LayerHandle>(
      std::static_pointer_cast<Layer>(shared_from_this()), stamp_, state_.call++);
  // An undefined tensor is no argument for torch; an empty one stands for it.
  const torch::Tensor none = torch::empty({0}, x.options());
  return LayerFunction::apply(x, weight, bias.defined() ? bias : none,
                              scores.defined() ? scores : none, handle);
}

torch::Tensor Layer::forward_product(const torch::Tensor& x) {
  const torch::Tensor input = settings_.recipe.fp8 ? rounded_to_fp8(x, Fp8::kE4m3) : x;
  const torch::Tensor y = path() == LayerPath::kPacked
                              ? packed_forward(input)
                              : plain_forward(for_arithmetic(input), for_arithmetic(plain_forward_))
                                    .to(x.scalar_type());
  if (finite_watch != nullptr && finite_watch->first_.empty() &&
      !torch::isfinite(y).all().item<bool>()) {
    finite_watch->first_ = label();
  }
  return y;
}

Layer::FiniteWatch::FiniteWatch() { finite_watch = this; }
Layer::FiniteWatch::~FiniteWatch() { finite_watch = nullptr; }
Layer::InputWatch::InputWatch(See see) : see_(std::move(see)) { input_watch = this; }
Layer::InputWatch::~InputWatch() { input_watch = nullptr; }

std::optional<LayerPlan> Layer::sparse_plan() {
  if (always_dense() || path() != LayerPath::kPacked) return std::nullopt;
  const Recipe& recipe = settings_.recipe;
  auto plan = products().plan_for(operand_pattern(), recipe.forward == ForwardPart::kTransposable,
                                  recipe.gradient == GradientPart::kMasked);
  if (!plan || recipe.samples_gradient() || recipe.gradient == GradientPart::kMasked) return plan;
  ProductPlan& gradient = plan->products[static_cast<size_t>(Product::kBackwardWeight)];
  gradient = ProductPlan();
  gradient.kind = ProductKind::kBackwardWeight;
  gradient.reason = "exact";
  return plan;
}

torch::Tensor Layer::backward_data_product(const torch::Tensor& g, const torch::Tensor& x) {
  const torch::Tensor gradient = settings_.recipe.fp8 ? rounded_to_fp8(g, Fp8::kE5m2) : g;
  const torch::Tensor dx = path() == LayerPath::kPacked
                               ? packed_backward_data(gradient, x)
                               : plain_backward_data(for_arithmetic(gradient), for_arithmetic(x),
                                                     for_arithmetic(plain_backward_))
                                     .to(g.scalar_type());
  if (settings_.telemetry && measure_cosine_ && state_.backward.rows() > 0) {
    const torch::Tensor exact = plain_operand(state_.forward).to(product_type());
    cosine_ = cosine(dx, plain_backward_data(for_arithmetic(gradient), for_arithmetic(x),
                                             for_arithmetic(exact)));
  }
  return dx;
}

torch::Tensor Layer::backward_weight_product(const torch::Tensor& g, const torch::Tensor& x,
                                             int64_t call) {
  const bool fp8 = settings_.recipe.fp8;
  const std::optional<Sampling> sample = sampling(call);
  const torch::Tensor input = fp8 ? rounded_to_fp8(x, Fp8::kE5m2) : x;
  // A sample is rounded after it has been drawn.
  torch::Tensor gradient = fp8 && !sample ? rounded_to_fp8(g, Fp8::kE5m2) : g;
  if (path() == LayerPath::kPacked) return packed_backward_weight(gradient, input, sample);
  if (sample) {
    const torch::Tensor host = g.to(torch::kCPU, torch::kFloat).contiguous();
    const torch::Tensor wide = widened(g);
    gradient = wide * sample_scales_of(host, sample->options).to(g.device(), wide.scalar_type());
    if (sample->rounding) gradient = rounded_to_fp8(gradient, *sample->rounding);
    gradient = gradient.to(g.scalar_type());
  }
  const torch::Tensor dw = plain_backward_weight(for_arithmetic(gradient), for_arithmetic(input))
                               .to(weight.scalar_type());
  const bool masked = settings_.recipe.gradient == GradientPart::kMasked && state_.sparse();
  return masked ? dw * mask_tensor(state_.forward, dw) : dw;
}

std::optional<Sampling> Layer::sampling(int64_t call) const {
  const Recipe& recipe = settings_.recipe;
  const bool dense_phase = recipe.forward != ForwardPart::kDense && !state_.sparse();
  if (!recipe.samples_gradient() || dense_phase) return std::nullopt;
  SampleOptions options{.pattern = settings_.pattern};
  options.sampler =
      recipe.gradient == GradientPart::kMvueTwoDraw ? Sampler::kTwoDraw : Sampler::kExact;
  options.key = {state_.seed, static_cast<uint64_t>(state_.step),
                 static_cast<uint32_t>(state_.layer),
                 static_cast<uint32_t>(call * settings_.replicas + settings_.replica)};
  return Sampling{options, recipe.fp8 ? std::optional(Fp8::kE5m2) : std::nullopt};
}

// Once one candidate is left there is nothing to learn, and momentum shall not move on by itself.
void Layer::freeze_scores_at_the_end() {
  if (!scores.defined()) return;
  const bool ended = removal_progress(settings_.recipe, state_.step, settings_.total_steps) >= 1.0;
  if (ended) scores.mutable_grad() = torch::Tensor();
  scores.requires_grad_(!ended);
}

torch::Tensor Layer::score_gradient(const torch::Tensor& dw) const {
  if (!state_.sparse()) return torch::zeros_like(scores);
  const BestCombination lbc(weight_shape(), settings_.pattern);
  const auto type = weight.scalar_type() == torch::kFloat ? torch::kFloat : torch::kDouble;
  const torch::Tensor host_dw = dw.to(torch::kCPU, type).contiguous();
  const torch::Tensor host_w = weight.detach().to(torch::kCPU, type).contiguous();
  torch::Tensor ds = torch::zeros(scores.sizes(), type);
  if (type == torch::kFloat) {
    lbc.add_score_gradients(host_dw.data_ptr<float>(), host_w.data_ptr<float>(), state_.alive,
                            ds.data_ptr<float>());
  } else {
    lbc.add_score_gradients(host_dw.data_ptr<double>(), host_w.data_ptr<double>(), state_.alive,
                            ds.data_ptr<double>());
  }
  return ds.to(scores.device(), scores.scalar_type());
}

void Layer::add_decay(double learning_rate) {
  const Recipe& recipe = settings_.recipe;
  if (recipe.decay == DecayPart::kNone || !state_.sparse() || !weight.grad().defined()) return;
  const torch::NoGradGuard no_grad;
  const bool decoupled = recipe.decay == DecayPart::kDecoupled;
  const double scale = decoupled ? -learning_rate * recipe.lambda : recipe.lambda;
  torch::Tensor to = decoupled ? weight.detach() : weight.grad();
  if (path() == LayerPath::kPacked && to.is_contiguous() && to.scalar_type() == torch::kFloat) {
    add_where_pruned(weight.data_ptr<float>(), state_.forward, static_cast<float>(scale),
                     to.data_ptr<float>());
  } else {
    to.add_(weight.detach() * (1 - mask_tensor(state_.forward, weight)), scale);
  }
}

void Layer::count_step() {
  refresh_owed_ |= !std::exchange(training_pass_, false);
  ++state_.step;
  state_.call = 0;
  step_pending_ = true;
}

void Layer::give_row_order(std::vector<int64_t> order) {
  WEFT_CHECK(!state_.begun, "{}: a row order must be given before the first product", label());
  WEFT_CHECK(order.empty() || (settings_.pattern.share() > 1 && channel_groups() == 1),
             "{}: a row order is for shared patterns, and mixes no groups of channels", label());
  require_row_order(order, weight_shape().outs, label());
  state_.row_order = std::move(order);
  store_state();
}

void Layer::weights_changed() {
  if (state_.begun) update(Occasion::kReplaced);
}

LayerTelemetry Layer::telemetry(bool costly) {
  LayerTelemetry t;
  if (state_.sparse()) {
    t.forward_density = state_.forward.density();
    if (costly) {
      const torch::Tensor host = host_weights();
      t.retained = retained(host.data_ptr<float>(), weight_shape(), state_.forward).fraction();
      if (!state_.row_order.empty()) t.retained_as_rows_lie = retained_as_rows_lie(host);
    }
    t.backward_density = state_.backward.rows() > 0 ? state_.backward.density() : t.forward_density;
    if (t.forward_density > 0.0) t.backward_kept = t.backward_density / t.forward_density;
  }
  t.changed_bits = changed_bits_;
  t.flip_rate = static_cast<double>(changed_bits_) / static_cast<double>(weight.numel());
  if (state_.alive.rows() > 0) {
    t.alive = BestCombination(weight_shape(), settings_.pattern).mean_alive(state_.alive);
  }
  t.beta = state_.beta;
  t.cosine = cosine_;
  t.times = products().times();
  t.plan = path() == LayerPath::kPlain ? "plain" : products().choices();
  return t;
}

double Layer::retained_as_rows_lie(const torch::Tensor& host) const {
  const auto* weights = host.data_ptr<float>();
  const Mask mask =
      find_mask(settings_.recipe.mask_solver(), weights, weight_shape(), settings_.pattern);
  return retained(weights, weight_shape(), mask).fraction();
}

void Layer::clear_times() {
  products().times() = {};
  cosine_.reset();
}

void Layer::store_state() {
  const torch::NoGradGuard no_grad;
  saved_mask_.set_data(words_of(state_.forward));
  saved_backward_mask_.set_data(words_of(state_.backward));
  saved_permutation_.set_data(words_of(state_.permutation));
  saved_row_order_.set_data(words_of(state_.row_order));
  saved_alive_.set_data(words_of(state_.alive));
  saved_counters_.set_data(counters_of(state_, state_owner()));
}

// Whose state it is: a layer with another recipe would make something else of it.
std::string Layer::state_owner() const {
  return always_dense() ? "dense" : settings_.recipe.name + " at " + settings_.pattern.str();
}

void Layer::restore_state() {
  const WeightShape shape = weight_shape();
  const auto context = fmt::format("the saved state of {}", label());
  LayerState state = state_from_counters(saved_counters_, state_owner(), context);
  state.forward = mask_from(saved_mask_, shape.outs, shape.cols(), context + ": mask");
  state.backward =
      mask_from(saved_backward_mask_, shape.outs, shape.cols(), context + ": backward_mask");
  state.permutation = permutation_from(saved_permutation_, shape.outs, context + ": permutation");
  state.row_order = permutation_from(saved_row_order_, shape.outs, context + ": row_order");
  if (settings_.recipe.forward == ForwardPart::kUnion) {
    const BestCombination lbc(shape, settings_.pattern);
    state.alive =
        mask_from(saved_alive_, lbc.cells() * lbc.groups(), lbc.candidates(), context + ": alive");
  }
  const bool sparse =
      state.begun && !is_dense_step(settings_.recipe, state.refreshed, settings_.total_steps);
  WEFT_CHECK(state.sparse() == sparse, "{}: step {} has {} mask, and should have {}", context,
             state.refreshed, state.sparse() ? "a" : "no", sparse ? "one" : "none");
  state_ = std::move(state);
  step_pending_ = refresh_owed_ = false;
  training_pass_ = state_.call > 0 && state_.refreshed == state_.step;
  refreshed_bits_ = 0;
  freeze_scores_at_the_end();
  forget_operands();
  store_state();
}

void Layer::state_changed() { restore_state(); }

void Layer::save(torch::serialize::OutputArchive& archive) const {
  // `call` counts products, which do not write to the buffers.
  torch::Tensor(saved_counters_).set_data(counters_of(state_, state_owner()));
  torch::nn::Module::save(archive);
}

void Layer::load(torch::serialize::InputArchive& archive) {
  forget_operands();  // whatever happens, they are of weights that are gone
  torch::nn::Module::load(archive);
  restore_state();
}

// torch casts every buffer; the state is integers on the CPU whatever the weights are.
void Layer::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  store_state();
  forget_operands();
}
void Layer::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  store_state();
  forget_operands();
}
void Layer::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  store_state();
  forget_operands();
}

std::vector<std::pair<std::string, std::shared_ptr<Layer>>> layers_of(torch::nn::Module& module) {
  std::vector<std::pair<std::string, std::shared_ptr<Layer>>> found;
  std::set<const Layer*> seen;  // a layer that is registered twice is one layer
  if (auto* layer = module.as<Layer>()) {
    found.emplace_back("", std::static_pointer_cast<Layer>(layer->shared_from_this()));
    seen.insert(layer);
  }
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    auto layer = std::dynamic_pointer_cast<Layer>(child.value());
    if (!layer || !seen.insert(layer.get()).second) continue;
    std::string name = child.key();
    if (name.ends_with(".weft")) name.resize(name.size() - 5);  // attached to a torch layer
    found.emplace_back(std::move(name), std::move(layer));
  }
  return found;
}

}  // namespace weft
