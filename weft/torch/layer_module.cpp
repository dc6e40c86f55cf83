#include "weft/torch/layer_module.h"

#include <set>
#include <utility>

#include "weft/core/error.h"
#include "weft/layer/activations.h"
#include "weft/layer/fingerprint.h"
#include "weft/torch/batch_share.h"
#include "weft/torch/layer_function.h"
#include "weft/torch/state_tensors.h"
#include "weft/torch/tensor_math.h"

namespace weft {

namespace {

thread_local LayerModule::FiniteWatch* finite_watch = nullptr;
thread_local LayerModule::InputWatch* input_watch = nullptr;

// Of a weight of any dtype, on any device: only the places that count are copied.
uint64_t fingerprint_of(const torch::Tensor& weight) {
  if (weight.device().is_cpu() && weight.scalar_type() == torch::kFloat && weight.is_contiguous()) {
    return fingerprint(weight.data_ptr<float>(), weight.numel());
  }
  const torch::Tensor flat = weight.detach().reshape({-1});
  if (flat.numel() == 0) return fingerprint(nullptr, 0);
  auto places = fingerprint_places(flat.numel());
  const torch::Tensor at = torch::from_blob(places.data(), {kFingerprintPlaces}, torch::kLong);
  const torch::Tensor some =
      flat.index_select(0, at.to(flat.device())).to(torch::kCPU, torch::kDouble).contiguous();
  return fingerprint_of_places(some.data_ptr<double>(), flat.numel());
}

torch::Tensor on_host(const torch::Tensor& t, torch::Dtype type) {
  return t.detach().to(torch::kCPU, type).contiguous();
}

// The name of a layer, which may be attached to a module of torch: "fc1" of "fc1.weft",
// "attention.in_proj" of "attention.weft.in_proj".
std::string without_attached(const std::string& key) {
  std::string name;
  for (size_t begin = 0; begin <= key.size();) {
    const size_t end = std::min(key.find('.', begin), key.size());
    const std::string part = key.substr(begin, end - begin);
    if (part != kAttached) name += (name.empty() ? "" : ".") + part;
    begin = end + 1;
  }
  return name;
}

double cosine_of(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::Tensor x = on_host(a, torch::kDouble), y = on_host(b, torch::kDouble);
  return cosine(x.data_ptr<double>(), y.data_ptr<double>(), x.numel());
}

}  // namespace

std::string_view path_name(LayerPath path) {
  return path == LayerPath::kPacked ? "packed" : "plain";
}

LayerPath LayerModule::path() const {
  const bool packed = weight.device().is_cpu() && weight.scalar_type() == torch::kFloat;
  return packed && !settings().force_plain ? LayerPath::kPacked : LayerPath::kPlain;
}

// ---- settings and state

void LayerModule::register_state() {
  for (const std::string_view name : kStateNames) {
    buffers_.push_back(register_buffer(std::string(name), empty_words()));
  }
  configure({});
}

void LayerModule::configure(const LayerSettings& settings) {
  layer().configure(settings);
  plain_cosine_.reset();
  reset_scores();
  store_state();
}

void LayerModule::begin_again() {
  require_shape();
  const LayerSettings settings = layer().settings();
  layer().configure(settings);
  plain_cosine_.reset();
  if (scores.defined()) {  // in place: an optimiser holds them
    const torch::NoGradGuard no_grad;
    scores.requires_grad_(true);
    scores.copy_(first_scores());
  }
  store_state();
}

torch::Tensor LayerModule::first_scores() const {
  const auto shape = layer().score_shape();
  torch::Tensor first =
      torch::empty({shape->cells, shape->groups, shape->candidates}, torch::kFloat);
  layer().first_scores({first.data_ptr<float>(), static_cast<size_t>(first.numel())});
  return first.to(weight.device(), weight.scalar_type());
}

void LayerModule::reset_scores() {
  if (scores.defined()) parameters_.erase("scores");
  scores = layer().score_shape() ? register_parameter("scores", first_scores()) : torch::Tensor();
}

// Once there is nothing left to learn, momentum shall not move scores on by itself.
void LayerModule::settle_state() {
  if (scores.defined()) {
    const bool trained = layer().trains_scores();
    if (!trained) scores.mutable_grad() = torch::Tensor();
    scores.requires_grad_(trained);
  }
  store_state();
}

void LayerModule::store_state() const {
  const torch::NoGradGuard no_grad;
  const std::vector<StateArray> arrays = layer().save_state();
  for (size_t i = 0; i < arrays.size(); ++i)
    torch::Tensor(buffers_[i]).set_data(tensor_of(arrays[i]));
}

void LayerModule::restore_state() {
  std::vector<StateArray> arrays;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    arrays.push_back(array_of(buffers_[i], std::string(kStateNames[i]),
                              fmt::format("the saved state of {}", layer().label())));
  }
  layer().load_state(arrays);
  settle_state();
}

void LayerModule::state_changed() { restore_state(); }

void LayerModule::save(torch::serialize::OutputArchive& archive) const {
  // Passes are counted, and do not write to the buffers; nor does what is done to layer() itself.
  store_state();
  torch::nn::Module::save(archive);
}

bool LayerModule::has_state(torch::serialize::InputArchive& archive) const {
  std::vector<StateArray> arrays;
  for (const std::string_view name : kStateNames) {
    torch::Tensor found;
    if (!archive.try_read(std::string(name), found, /*is_buffer=*/true)) return false;
    arrays.push_back(array_of(found, std::string(name), "a saved state"));
  }
  return always_dense() || !is_dense_state(arrays);
}

void LayerModule::load(torch::serialize::InputArchive& archive) {
  layer().forget_operands();  // whatever happens, they are of weights that are gone
  weft_errors(layer().label(), [&] {
    if (has_state(archive)) {
      torch::nn::Module::load(archive);
      require_shape();
      restore_state();
      began_again_ = false;
      return;
    }
    for (auto& parameter : named_parameters(/*recurse=*/false)) {
      if (parameter.key() != "scores") archive.read(parameter.key(), parameter.value());
    }
    begin_again_after_load();
  });
}

void LayerModule::begin_again_after_load() {
  begin_again();
  began_again_ = true;
}

// torch casts every buffer; the state is integers on the CPU whatever the weights are.
void LayerModule::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  store_state();
  layer().forget_operands();
}
void LayerModule::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  store_state();
  layer().forget_operands();
}
void LayerModule::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  store_state();
  layer().forget_operands();
}

void LayerModule::give_row_order(std::vector<int64_t> order) {
  layer().give_row_order(std::move(order));
  store_state();
}

// ---- a step

LayerWeights LayerModule::HostWeights::view() const {
  LayerWeights view{values.data_ptr<float>()};
  if (scores.defined()) {
    view.scores = {scores.data_ptr<float>(), static_cast<size_t>(scores.numel())};
  }
  return view;
}

LayerModule::HostWeights LayerModule::host_weights() const {
  HostWeights host{on_host(weight, torch::kFloat), {}};
  if (scores.defined()) host.scores = on_host(scores, torch::kFloat);
  return host;
}

void LayerModule::bring_up_to_date() {
  const HostWeights host = host_weights();
  layer().bring_up_to_date(host.view());
  settle_state();
}

void LayerModule::weights_changed() {
  const HostWeights host = host_weights();
  layer().weights_changed(host.view());
  settle_state();
}

void LayerModule::add_decay(double learning_rate) {
  if (settings().recipe.decay->none() || !state().sparse() || !weight.grad().defined()) return;
  const torch::NoGradGuard no_grad;
  torch::Tensor gradient = weight.grad();
  if (path() == LayerPath::kPacked && gradient.is_contiguous() && weight.is_contiguous() &&
      gradient.scalar_type() == torch::kFloat) {
    layer().add_decay(weight.data_ptr<float>(), gradient.data_ptr<float>(), learning_rate);
    return;
  }
  const torch::Tensor w = on_host(weight, torch::kDouble).clone();
  const torch::Tensor g = on_host(gradient, torch::kDouble).clone();
  layer().add_decay(w.data_ptr<double>(), g.data_ptr<double>(), learning_rate);
  weight.detach().copy_(w);
  gradient.copy_(g);
}

void LayerModule::follow_weight_gradient() {
  if (!scores.defined() || !scores.requires_grad() || !weight.grad().defined()) return;
  scores.mutable_grad() = score_gradient(weight.grad());
}

bool LayerModule::prepared_for_weights() const {
  return prepared_stamp_ == layer().stamp() && fingerprint_ == fingerprint_of(weight);
}

void LayerModule::require_shape() const {
  const WeightShape shape = weight_shape();
  WEFT_CHECK(weight.defined() && weight.dim() >= 2 && weight.size(0) == shape.outs &&
                 weight.numel() == shape.outs * shape.cols(),
             "{}: the weight has become {}, the layer was made for {} outputs of {} weights",
             layer().label(), sizes_text(weight), shape.outs, shape.cols());
  WEFT_CHECK(!bias.defined() || bias.numel() == shape.outs,
             "{}: the bias has become {}, the layer has {} outputs", layer().label(),
             sizes_text(bias), shape.outs);
}

void LayerModule::require_same_weights() const {
  WEFT_CHECK(fingerprint_ == fingerprint_of(weight),
             "the weights of {} changed outside weft::step(): take optimiser steps with "
             "weft::step(), and call weights_changed() after loading or editing weights",
             layer().label());
}

void LayerModule::prepare(bool training) {
  require_shape();
  if (layer().is_due(training)) {
    const HostWeights host = host_weights();
    layer().begin_pass(host.view(), training);
    settle_state();
  } else {
    layer().begin_pass({}, training);
  }
  WEFT_CHECK(path() == LayerPath::kPlain || weight.is_contiguous(),
             "the weight of {} is not contiguous", layer().label());
  if (prepared_stamp_ == layer().stamp()) return require_same_weights();
  if (path() == LayerPath::kPlain) make_plain_operands();
  fingerprint_ = fingerprint_of(weight);
  prepared_stamp_ = layer().stamp();
}

// ---- the plain path

torch::Tensor LayerModule::plain_operand() const {
  if (!state().sparse()) return weight.detach();
  // In the arithmetic of the packed path, so that what is exported has the bits that were trained.
  const bool wide = weight.scalar_type() == torch::kDouble;
  const torch::Tensor host = on_host(weight, wide ? torch::kDouble : torch::kFloat);
  torch::Tensor operand = torch::empty_like(host);
  if (wide) {
    layer().effective_values(host.data_ptr<double>(), operand.data_ptr<double>());
  } else {
    layer().effective_values(host.data_ptr<float>(), operand.data_ptr<float>());
  }
  return operand.to(weight.device(), weight.scalar_type());
}

void LayerModule::make_plain_operands() {
  const torch::NoGradGuard no_grad;
  plain_forward_ = plain_operand();
  plain_backward_ = state().backward.rows() > 0
                        ? plain_forward_ * mask_tensor(state().backward, weight)
                        : plain_forward_;
  if (settings().recipe.fp8) {
    plain_forward_ = rounded_to_fp8(plain_forward_, Fp8::kE4m3);
    plain_backward_ = rounded_to_fp8(plain_backward_, Fp8::kE5m2);
  }
  plain_forward_ = plain_forward_.to(product_type());
  plain_backward_ = plain_backward_.to(product_type());
}

torch::Tensor LayerModule::effective_weight() {
  const torch::NoGradGuard no_grad;
  prepare(/*training=*/false);
  return plain_operand().clone();
}

// ---- products

void LayerModule::require_input(const torch::Tensor& x) const {
  const torch::Dtype type = x.scalar_type();
  WEFT_CHECK(
      x.device() == weight.device() && (type == weight.scalar_type() || type == product_type()),
      "{}: an input of {} on {} for weights of {} on {}{}", layer().label(), c10::toString(type),
      x.device().str(), c10::toString(weight.scalar_type()), weight.device().str(),
      in_bf16() ? " in bf16" : "");
}

int64_t LayerModule::tokens_per_sample(const torch::Tensor& x, const BatchShare& share) const {
  const int64_t tokens = tokens_of(x), each = tokens / share.samples;
  WEFT_CHECK(each * share.samples == tokens, "{}: {} tokens of {} samples: each must have as many",
             layer().label(), tokens, share.samples);
  // Of a convolution, groups begin with every image.
  if (weight.dim() == 2 && layer().sampling(Pass(), 0)) {
    const int64_t group = layer().sample_pattern().group();
    WEFT_CHECK(tokens % group == 0,
               "{}: a rank's share of the batch has {} tokens here, and gradients are sampled in "
               "groups of {}: take a larger batch or fewer ranks",
               layer().label(), tokens, group);
  }
  return each;
}

torch::Tensor LayerModule::rows_for(const torch::Tensor& t, const Outputs& some) const {
  return some == layer().all() ? t : t.narrow(0, some.first, some.count);
}

torch::Tensor LayerModule::run(const torch::Tensor& input, const Outputs& some) {
  require_input(input);
  return weft_errors(layer().label(), [&] {
    const torch::Tensor x = input.to(product_type());
    prepare(/*training=*/torch::GradMode::is_enabled() && is_training());
    if (const BatchShare* share = BatchShare::current()) tokens_per_sample(x, *share);
    if (input_watch != nullptr) {
      input_watch->see_(*this, [&] {
        WEFT_CHECK(some == layer().all(), "{}: its outputs have different inputs", layer().label());
        return rows_of(x);
      });
    }
    if (!torch::GradMode::is_enabled()) return forward_product(x.contiguous(), some);
    return apply_layer(x, *this, some);
  });
}

torch::Tensor LayerModule::forward_product(const torch::Tensor& x, const Outputs& some) {
  torch::Tensor y;
  if (path() == LayerPath::kPacked) {
    y = packed_forward(x, some);
  } else {
    const torch::Tensor input = settings().recipe.fp8 ? rounded_to_fp8(x, Fp8::kE4m3) : x;
    const torch::Tensor w = for_arithmetic(rows_for(plain_forward_, some));
    y = plain_forward(for_arithmetic(input), w).to(x.scalar_type());
  }
  if (finite_watch != nullptr && finite_watch->first_.empty() &&
      !torch::isfinite(y).all().item<bool>()) {
    finite_watch->first_ = layer().label();
  }
  return y;
}

torch::Tensor LayerModule::backward_data_product(const torch::Tensor& g, const torch::Tensor& x,
                                                 const Outputs& some) {
  if (path() == LayerPath::kPacked) return packed_backward_data(g, x, some);
  const torch::Tensor gradient = settings().recipe.fp8 ? rounded_to_fp8(g, Fp8::kE5m2) : g;
  const auto product = [&](const torch::Tensor& w) {
    return plain_backward_data(for_arithmetic(gradient), for_arithmetic(x),
                               for_arithmetic(rows_for(w, some)));
  };
  const torch::Tensor dx = product(plain_backward_).to(g.scalar_type());
  if (settings().telemetry && measure_cosine_ && state().backward.rows() > 0) {
    plain_cosine_ = cosine_of(dx, product(plain_operand().to(product_type())));
  }
  return dx;
}

torch::Tensor LayerModule::backward_weight_product(const torch::Tensor& g, const torch::Tensor& x,
                                                   const Pass& pass, const Outputs& some) {
  const torch::Tensor dw = path() == LayerPath::kPacked ? packed_backward_weight(g, x, pass, some)
                                                        : plain_weight_product(g, x, pass, some);
  if (some == layer().all()) return dw;
  torch::Tensor whole = torch::zeros(weight.sizes(), dw.options());
  whole.narrow(0, some.first, some.count).copy_(dw);
  return whole;
}

torch::Tensor LayerModule::plain_weight_product(const torch::Tensor& g, const torch::Tensor& x,
                                                const Pass& pass, const Outputs& some) {
  const Recipe& recipe = settings().recipe;
  const std::optional<Sampling> sample = layer().sampling(pass, 0);
  const torch::Tensor input = recipe.fp8 ? rounded_to_fp8(x, Fp8::kE5m2) : x;
  torch::Tensor gradient = g;
  if (sample) {  // rounded after it has been drawn
    const torch::Tensor host = on_host(g, torch::kFloat);
    const torch::Tensor wide = widened(g);
    gradient = wide * sample_scales_of(host, sample->options).to(g.device(), wide.scalar_type());
    if (sample->rounding) gradient = rounded_to_fp8(gradient, *sample->rounding);
    gradient = gradient.to(g.scalar_type());
  } else if (recipe.fp8) {
    gradient = rounded_to_fp8(g, Fp8::kE5m2);
  }
  const torch::Tensor dw = plain_backward_weight(for_arithmetic(gradient), for_arithmetic(input))
                               .to(weight.scalar_type());
  const bool masked = recipe.gradient->masked && state().sparse();
  return masked ? dw * rows_for(mask_tensor(state().forward, weight), some) : dw;
}

torch::Tensor LayerModule::score_gradient(const torch::Tensor& dw) const {
  const auto type = weight.scalar_type() == torch::kFloat ? torch::kFloat : torch::kDouble;
  const torch::Tensor host_dw = on_host(dw, type), host_w = on_host(weight, type);
  torch::Tensor ds = torch::empty(scores.sizes(), type);
  if (type == torch::kFloat) {
    layer().score_gradient(host_w.data_ptr<float>(), host_dw.data_ptr<float>(),
                           ds.data_ptr<float>());
  } else {
    layer().score_gradient(host_w.data_ptr<double>(), host_dw.data_ptr<double>(),
                           ds.data_ptr<double>());
  }
  return ds.to(scores.device(), scores.scalar_type());
}

LayerModule::FiniteWatch::FiniteWatch() { finite_watch = this; }
LayerModule::FiniteWatch::~FiniteWatch() { finite_watch = nullptr; }
LayerModule::InputWatch::InputWatch(See see) : see_(std::move(see)) { input_watch = this; }
LayerModule::InputWatch::~InputWatch() { input_watch = nullptr; }

// ---- what it did

LayerTelemetry LayerModule::telemetry(bool costly) {
  torch::Tensor host;
  if (costly && state().sparse()) host = on_host(weight, torch::kFloat);
  LayerTelemetry t = layer().telemetry(host.defined() ? host.data_ptr<float>() : nullptr);
  if (plain_cosine_) t.cosine = plain_cosine_;
  return t;
}

std::string LayerModule::plan_text() {
  return path() == LayerPath::kPlain ? "plain" : layer().telemetry(nullptr).plan_text();
}

void LayerModule::clear_times() {
  layer().clear_times();
  plain_cosine_.reset();
}

void LayerModule::measure_cosine(bool measure) {
  measure_cosine_ = measure;
  layer().measure_cosine(measure);
}

std::optional<LayerPlan> LayerModule::sparse_plan() {
  return path() == LayerPath::kPacked ? layer().sparse_plan() : std::nullopt;
}

std::vector<std::pair<std::string, std::shared_ptr<LayerModule>>> layers_of(
    torch::nn::Module& module) {
  std::vector<std::pair<std::string, std::shared_ptr<LayerModule>>> found;
  std::set<const LayerModule*> seen;  // a layer that is registered twice is one layer
  if (auto* layer = module.as<LayerModule>()) {
    found.emplace_back("", std::static_pointer_cast<LayerModule>(layer->shared_from_this()));
    seen.insert(layer);
  }
  for (const auto& child : module.named_modules("", /*include_self=*/false)) {
    auto layer = std::dynamic_pointer_cast<LayerModule>(child.value());
    if (!layer || !seen.insert(layer.get()).second) continue;
    found.emplace_back(without_attached(child.key()), std::move(layer));
  }
  return found;
}

}  // namespace weft
