#include "weft/train/layers/layer.h"

#include <torch/autograd.h>

#include <bit>
#include <chrono>
#include <cstring>

#include "weft/core/bits.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"
#include "weft/train/layers/state_tensors.h"
#include "weft/train/layers/tensor_math.h"
#include "weft/train/recipes/decay.h"
#include "weft/train/recipes/schedule.h"
#include "weft/train/recipes/soft_threshold.h"

namespace weft {

namespace {

// A few hundred weights stand for all: an optimiser moves nearly every one of them.
uint64_t fingerprint_of(const torch::Tensor& weight) {
  const torch::Tensor flat = weight.detach().reshape({-1});
  const int64_t step = std::max<int64_t>(1, flat.numel() / 256);
  const torch::Tensor some =
      flat.slice(0, 0, flat.numel(), step).to(torch::kCPU, torch::kDouble).contiguous();
  const auto* values = some.data_ptr<double>();
  uint64_t hash = static_cast<uint64_t>(flat.numel());
  for (int64_t i = 0; i < some.numel(); ++i) {
    hash = (hash ^ std::bit_cast<uint64_t>(values[i])) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 29;
  }
  return hash;
}

int64_t changed_bits(Mask& before, Mask& after) {
  if (before.rows() != after.rows() || before.cols() != after.cols()) return 0;
  int64_t changed = 0;
  const int64_t words = before.rows() * ((before.cols() + 63) / 64);
  const uint64_t *a = before.row_words(0), *b = after.row_words(0);
  for (int64_t i = 0; i < words; ++i) changed += popcount64(a[i] ^ b[i]);
  return changed;
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double cosine(const torch::Tensor& a, const torch::Tensor& b) {
  const double product = (a.to(torch::kDouble) * b.to(torch::kDouble)).sum().item<double>();
  const double norms = a.to(torch::kDouble).norm().item<double>() *
                       b.to(torch::kDouble).norm().item<double>();
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
               layer.name());
    const torch::Tensor x = context->get_saved_variables()[0].contiguous();
    const torch::Tensor g = gradients[0].contiguous();
    torch::Tensor dx, dw, db, ds;
    if (context->needs_input_grad(0)) dx = layer.backward_data_product(g, x);
    if (context->needs_input_grad(1)) dw = layer.backward_weight_product(g, x, handle->call);
    if (layer.bias.defined() && context->needs_input_grad(2)) db = layer.bias_gradient(g);
    if (dw.defined() && context->needs_input_grad(3)) ds = layer.score_gradient(dw);
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
  saved_alive_ = register_buffer("alive", empty_words());
  saved_counters_ = register_buffer("counters", empty_words());
  configure({});
}

void Layer::configure(const LayerSettings& settings) {
  settings.recipe.check(settings.pattern);
  WEFT_CHECK(settings.total_steps > 0 || !settings.recipe.needs_total_steps(),
             "recipe '{}' has a schedule in shares of the run: total_steps must be given",
             settings.recipe.name);
  settings_ = settings;
  if (!settings_.planner) settings_.planner = std::make_shared<Planner>();
  // With keep = group every method is dense training: no masks, no samples, β = 1.
  if (always_dense() && settings_.pattern.keep() == settings_.pattern.group()) {
    const std::string name = settings_.recipe.name;
    const bool fp8 = settings_.recipe.fp8;
    settings_.recipe = Recipe::parse("dense");
    settings_.recipe.name = name;
    settings_.recipe.fp8 = fp8;
  }
  state_ = LayerState();
  state_.seed = settings.seed;
  state_.layer = settings.number;
  changed_bits_ = 0;
  cosine_.reset();
  reset_products(settings_.planner, settings_.micro_batches);
  reset_scores();
  ++stamp_;
  operands_valid_ = false;
  store_state();
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

LayerInput Layer::input_of(const torch::Tensor& host) const {
  LayerInput input;
  input.weights = host.data_ptr<float>();
  input.shape = weight_shape();
  input.pattern = settings_.pattern;
  input.recipe = &settings_.recipe;
  input.total_steps = settings_.total_steps;
  return input;
}

void Layer::bring_up_to_date() {
  const auto start = std::chrono::steady_clock::now();
  const torch::Tensor host = host_weights();
  LayerInput input = input_of(host);
  torch::Tensor host_scores;
  if (scores.defined()) {
    host_scores = scores.detach().to(torch::kCPU, torch::kFloat).contiguous();
    input.scores = {host_scores.data_ptr<float>(), static_cast<size_t>(host_scores.numel())};
  }
  Mask before;
  if (settings_.telemetry) before = state_.forward;
  try {
    weft::bring_up_to_date(input, state_);
  } catch (const UnusableWeightError& error) {
    throw Error(fmt::format("{} at step {}: {}", name(), state_.step, error.what()));
  }
  if (settings_.telemetry) changed_bits_ = changed_bits(before, state_.forward);
  freeze_scores_at_the_end();
  products().times().mask += seconds_since(start);
  ++stamp_;
  operands_valid_ = false;
  store_state();
}

void Layer::prepare() {
  if (!state_.begun) bring_up_to_date();
  if (operands_valid_) {
    WEFT_CHECK(fingerprint_ == fingerprint_of(weight),
               "the weights of {} changed, and not through weft::step(): take optimiser steps with "
               "it, and after loading or editing weights call weights_changed()",
               name());
    return;
  }
  make_operands();
  fingerprint_ = fingerprint_of(weight);
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
    return;
  }
  make_packed_operands();
}

void Layer::make_packed_operands() {
  WEFT_CHECK(weight.is_contiguous(), "the weight of {} is not contiguous", name());
  const auto start = std::chrono::steady_clock::now();
  const float* values = weight.data_ptr<float>();
  const size_t size = static_cast<size_t>(weight.numel());
  const bool sparse = state_.sparse();
  const bool own_values =
      settings_.recipe.fp8 || (sparse && !values_are_weights(settings_.recipe));
  LayerOperands operands;
  operands.forward.values = operands.backward.values = values;
  if (own_values) {
    forward_values_.reserve(size);
    const std::span<float> forward(forward_values_.data(), size);
    if (sparse) {
      forward_values(input_of(weight), state_, forward.data());
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
  products().times().mask += seconds_since(start);
  products().set(operands);
}

void Layer::describe_operands(LayerOperands& operands) const {
  const Pattern& pattern = settings_.pattern;
  const Pattern unshared(pattern.keep(), pattern.group());
  const bool transposable = settings_.recipe.forward == ForwardPart::kTransposable;
  // A union of candidates keeps more than N:M until the last are removed.
  const bool whole = settings_.recipe.forward == ForwardPart::kUnion &&
                     removal_progress(settings_.recipe, state_.step, settings_.total_steps) < 1.0;
  operands.forward.mask = &state_.forward;
  operands.forward.pattern = pattern;
  operands.forward.ragged = whole;
  operands.backward.mask = state_.backward.rows() > 0 ? &state_.backward : &state_.forward;
  operands.backward.pattern = transposable ? pattern : unshared;
  operands.backward.ragged = !transposable;
  operands.transposable = transposable;
  operands.planned = pattern;
  operands.masked_gradient = settings_.recipe.gradient == GradientPart::kMasked;
  if (whole) {  // the pattern of its density stands for it
    const double kept = state_.forward.density() * pattern.group();
    const int keep = std::clamp(static_cast<int>(std::ceil(kept - 0.05)), pattern.keep(),
                                pattern.group());
    operands.planned = Pattern(keep, pattern.group(), pattern.share());
  }
}

torch::Tensor Layer::plain_operand(const Mask& mask) const {
  if (mask.rows() == 0) return weight.detach();
  if (values_are_weights(settings_.recipe)) return weight.detach() * mask_tensor(mask, weight);
  const torch::Tensor host = weight.detach().to(torch::kCPU, torch::kDouble).contiguous();
  torch::Tensor soft = torch::empty_like(host);
  soft_threshold(host.data_ptr<double>(), mask, weight_shape(), settings_.pattern, state_.beta,
                 soft.data_ptr<double>());
  return soft.to(weight.device(), weight.scalar_type());
}

torch::Tensor Layer::effective_weight() {
  const torch::NoGradGuard no_grad;
  prepare();
  return plain_operand(state_.forward).clone();
}

torch::Tensor Layer::run(const torch::Tensor& x) {
  WEFT_CHECK(x.device() == weight.device() && x.scalar_type() == weight.scalar_type(),
             "{}: an input of {} on {} for weights of {} on {}", name(),
             c10::toString(x.scalar_type()), x.device().str(), c10::toString(weight.scalar_type()),
             weight.device().str());
  prepare();
  const bool draws = torch::GradMode::is_enabled() && weight.requires_grad();
  const auto handle = c10::make_intrusive<LayerHandle>(
      std::static_pointer_cast<Layer>(shared_from_this()), stamp_, draws ? state_.call++ : 0);
  // An undefined tensor is no argument for torch; an empty one stands for it.
  const torch::Tensor none = torch::empty({0}, x.options());
  return LayerFunction::apply(x, weight, bias.defined() ? bias : none,
                              scores.defined() ? scores : none, handle);
}

torch::Tensor Layer::forward_product(const torch::Tensor& x) {
  const torch::Tensor input = settings_.recipe.fp8 ? rounded_to_fp8(x, Fp8::kE4m3) : x;
  return path() == LayerPath::kPacked ? packed_forward(input)
                                      : plain_forward(input, plain_forward_);
}

torch::Tensor Layer::backward_data_product(const torch::Tensor& g, const torch::Tensor& x) {
  const torch::Tensor gradient = settings_.recipe.fp8 ? rounded_to_fp8(g, Fp8::kE5m2) : g;
  const torch::Tensor dx = path() == LayerPath::kPacked
                               ? packed_backward_data(gradient, x)
                               : plain_backward_data(gradient, x, plain_backward_);
  if (settings_.telemetry && state_.backward.rows() > 0) {
    cosine_ = cosine(dx, plain_backward_data(gradient, x, plain_operand(state_.forward)));
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
    gradient = g * sample_scales_of(host, sample->options).to(g.device(), g.scalar_type());
    if (sample->rounding) gradient = rounded_to_fp8(gradient, *sample->rounding);
  }
  const torch::Tensor dw = plain_backward_weight(gradient, input);
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
                 static_cast<uint32_t>(state_.layer), static_cast<uint32_t>(call)};
  return Sampling{options, recipe.fp8 ? std::optional(Fp8::kE5m2) : std::nullopt};
}

// Once one candidate is left there is nothing to learn, and momentum shall not move on by itself.
void Layer::freeze_scores_at_the_end() {
  if (!scores.defined() ||
      removal_progress(settings_.recipe, state_.step, settings_.total_steps) < 1.0) {
    return;
  }
  scores.mutable_grad() = torch::Tensor();
  scores.requires_grad_(false);
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

void Layer::advance() {
  ++state_.step;
  state_.call = 0;
  bring_up_to_date();
}

void Layer::weights_changed() { bring_up_to_date(); }

LayerTelemetry Layer::telemetry() {
  LayerTelemetry t;
  if (state_.sparse()) {
    const torch::Tensor host = host_weights();
    t.forward_density = state_.forward.density();
    t.retained = retained(host.data_ptr<float>(), weight_shape(), state_.forward).fraction();
    t.backward_density =
        state_.backward.rows() > 0 ? state_.backward.density() : t.forward_density;
    t.backward_kept = t.backward_density / t.forward_density;
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

void Layer::clear_times() { products().times() = {}; }

void Layer::store_state() {
  const torch::NoGradGuard no_grad;
  saved_mask_.set_data(words_of(state_.forward));
  saved_backward_mask_.set_data(words_of(state_.backward));
  saved_permutation_.set_data(words_of(state_.permutation));
  saved_alive_.set_data(words_of(state_.alive));
  saved_counters_.set_data(counters_of(state_));
}

void Layer::restore_state() {
  const WeightShape shape = weight_shape();
  const auto context = fmt::format("the saved state of {}", name());
  state_ = state_from_counters(saved_counters_, context);
  state_.forward = mask_from(saved_mask_, shape.outs, shape.cols(), context + ": mask");
  state_.backward = mask_from(saved_backward_mask_, shape.outs, shape.cols(),
                              context + ": backward_mask");
  state_.permutation = permutation_from(saved_permutation_, shape.outs, context);
  if (settings_.recipe.forward == ForwardPart::kUnion) {
    const BestCombination lbc(shape, settings_.pattern);
    state_.alive = mask_from(saved_alive_, lbc.cells() * lbc.groups(), lbc.candidates(),
                             context + ": alive");
  }
  freeze_scores_at_the_end();
  ++stamp_;
  operands_valid_ = false;
  store_state();
}

void Layer::state_changed() { restore_state(); }

void Layer::save(torch::serialize::OutputArchive& archive) const {
  // `call` counts products, which do not write to the buffers.
  torch::Tensor(saved_counters_).set_data(counters_of(state_));
  torch::nn::Module::save(archive);
}

void Layer::load(torch::serialize::InputArchive& archive) {
  torch::nn::Module::load(archive);
  restore_state();
}

// torch casts every buffer; the state is integers on the CPU whatever the weights are.
void Layer::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  store_state();
  operands_valid_ = false;
  ++stamp_;
}
void Layer::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  store_state();
  operands_valid_ = false;
  ++stamp_;
}
void Layer::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  store_state();
  operands_valid_ = false;
  ++stamp_;
}

std::vector<std::pair<std::string, std::shared_ptr<Layer>>> layers_of(torch::nn::Module& module) {
  std::vector<std::pair<std::string, std::shared_ptr<Layer>>> found;
  if (auto* layer = module.as<Layer>()) {
    found.emplace_back("", std::static_pointer_cast<Layer>(layer->shared_from_this()));
  }
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    if (auto layer = std::dynamic_pointer_cast<Layer>(child.value())) {
      found.emplace_back(child.key(), std::move(layer));
    }
  }
  return found;
}

}  // namespace weft
