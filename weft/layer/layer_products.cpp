// The products of a layer: the choice and the timing of a way, the operands, and samples.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "weft/core/error.h"
#include "weft/core/masked_copy.h"
#include "weft/layer/layer.h"
#include "weft/layer/stopwatch.h"
#include "weft/mask/row_order.h"
#include "weft/mask/taps.h"
#include "weft/pack/compact.h"
#include "weft/pack/group_check.h"
#include "weft/recipe/schedule.h"

namespace weft {

template <typename T>
void Layer::compute(Product product, const std::optional<Request>& request, MatrixView<T> result,
                    const Run<T>& run) {
  const Route route = request ? route_of(*request, product) : Route();
  note(product, route.way, route.chosen);
  if (route.contestants.empty()) return run(route.way, result);
  Measured& measured = measured_of(*request, product, route.contestants.size());
  const LayerTimes before = times_;
  // A dense copy that serves one product only need not outlive it.
  borrows_ = settings_.micro_batches == 1;
  try {
    take_turns(route, measured, result, run);
  } catch (...) {
    give_back_copy<T>();
    borrows_ = false;
    times_ = before;
    throw;
  }
  borrows_ = false;
}

template <typename T>
void Layer::take_turns(const Route& route, Measured& measured, MatrixView<T> result,
                       const Run<T>& run) {
  // Written once before anything is timed, so that no way has to wait for its pages.
  AlignedBuffer<T> memory(static_cast<size_t>(result.rows * result.cols));
  std::fill_n(memory.data(), memory.size(), T());
  const MatrixView<T> scratch(memory.data(), result.rows, result.cols);
  const LayerTimes before = times_;
  LayerTimes counted = before;
  const size_t count = route.contestants.size();
  for (size_t k = 0; k < count; ++k) {
    // The first one finds activations out of the cache, so the order alternates.
    const size_t i = (k + static_cast<size_t>(state_.step)) % count;
    times_ = before;
    double seconds = 0.0;
    {
      const Stopwatch watch(seconds);
      run(route.contestants[i], scratch);
    }
    measured.ms[i] += 1e3 * seconds;
    give_back_copy<T>();
    if (route.contestants[i] != route.way) continue;
    counted = times_;
    for (int64_t r = 0; r < result.rows; ++r) {
      std::copy_n(scratch.row(r), result.cols, result.row(r));
    }
  }
  ++measured.calls;
  times_ = counted;
}
template void Layer::compute(Product, const std::optional<Request>&, MatrixView<float>,
                             const Run<float>&);
template void Layer::compute(Product, const std::optional<Request>&, MatrixView<Bf16>,
                             const Run<Bf16>&);

// A backward product belongs to the training pass of its step, whatever was evaluated in between.
Route Layer::route_of(const Request& request, Product product) {
  const bool training = product == Product::kForward ? passing_for_training_ : training_pass_;
  const Route route = std::visit(
      [&](const auto& one) -> Route {
        return training ? planner().route(one, product, state_.step, this)
                        : Route{planner().evaluation_way(one, product, state_.step)};
      },
      request);
  if (!route.contestants.empty()) has_measured_ = measured_step_ = true;
  return route;
}

Layer::Measured& Layer::measured_of(const Request& request, Product product, size_t contestants) {
  for (Measured& one : measured_) {
    if (one.product == product && one.request == request) return one;
  }
  measured_.push_back({request, product, 0, std::vector<double>(contestants)});
  return measured_.back();
}

template <typename T>
void Layer::give_back_copy() {
  if (borrower_ == nullptr) return;
  borrower_->forget();
  borrower_->swap(planner().spare<T>());
  borrower_ = nullptr;
}

// Of the whole step, per call: what is packed once serves all of its micro-batches.
void Layer::hand_over_times() {
  for (Measured& one : measured_) {
    for (double& ms : one.ms) ms /= one.calls;
    std::visit(
        [&](const auto& request) {
          planner().add_times(request, one.product, state_.step, one.ms);
        },
        one.request);
  }
  // A step without a trial, after one: the memory of what was not chosen is free.
  if (measured_.empty() && has_measured_) {
    free_packs();
    dense_forward_ = {};
    dense_backward_ = {};
    has_measured_ = false;
  }
  measured_.clear();
}

// ---- operands

template <typename T>
const Layer::Operands& Layer::operands(const LayerWeights& weights) {
  WEFT_CHECK(state_.begun && !step_pending_, "{}: a product {}: call {} first", label(),
             state_.begun ? "after a step was counted" : "before the first pass",
             state_.begun ? "bring_up_to_date" : "begin_pass");
  const bool bf16 = std::is_same_v<T, Bf16>;
  WEFT_CHECK(bf16 == (settings_.precision == Precision::kBf16),
             "{}: activations must be {}, as the layer is", label(),
             precision_name(settings_.precision));
  if (!operands_valid_) make_operands(weights);
  return operands_;
}
template const Layer::Operands& Layer::operands<float>(const LayerWeights&);
template const Layer::Operands& Layer::operands<Bf16>(const LayerWeights&);

void Layer::make_operands(const LayerWeights& weights) {
  {
    const Stopwatch watch(times_.mask);
    make_values(weights);
    operands_ = Operands();
    if (state_.sparse()) describe(operands_);
    operands_.forward.precision = operands_.backward.precision = settings_.precision;
  }
  dense_forward_.forget();
  dense_backward_.forget();
  forget_packs();
  operands_valid_ = true;
}

void Layer::make_values(const LayerWeights& weights) {
  const bool fp8 = recipe().fp8, sparse = state_.sparse();
  const bool given = weights.operand != nullptr, compact = weights.compact != nullptr;
  WEFT_CHECK(!compact || (sparse && recipe().has_fixed_mask()),
             "{}: compact weights need a fixed mask", label());
  own_values_ = fp8 || compact || (sparse && !given && !values_are_weights(recipe()));
  own_backward_values_ = fp8;
  if (!own_values_) return;
  const auto size = static_cast<size_t>(shape_.outs * shape_.cols());
  forward_values_.reserve(size);
  const std::span<float> forward(forward_values_.data(), size);
  if (given) {
    std::memcpy(forward.data(), weights.operand, size * sizeof(float));
  } else if (compact) {
    expand_compact(weights.compact, state_.forward, shape_, settings_.pattern, forward.data());
  } else if (sparse) {
    forward_values(input_of(weights), state_, forward.data());
  } else {
    std::memcpy(forward.data(), weights.values, size * sizeof(float));
  }
  if (!fp8) return;
  backward_values_.reserve(size);
  const std::span<float> backward(backward_values_.data(), size);
  round_to_fp8(forward, Fp8::kE5m2, backward);
  round_to_fp8(forward, Fp8::kE4m3, forward);
}

const float* Layer::forward_operand(const LayerWeights& weights) const {
  if (own_values_) return forward_values_.data();
  return weights.operand != nullptr ? weights.operand : weights.values;
}
const float* Layer::backward_operand(const LayerWeights& weights) const {
  return own_backward_values_ ? backward_values_.data() : forward_operand(weights);
}

// A fixed mask is without zeros, and rows that share (or inputs, along outputs) may have zeros of
// their own: then they share nothing, and operands are packed row by row.
Pattern Layer::operand_pattern() const {
  const Pattern& pattern = settings_.pattern;
  if (pattern.share() == 1 || !recipe().has_fixed_mask() || !state_.sparse()) return pattern;
  bool alike = rows_share(in_row_order(state_.forward, state_.row_order), pattern);
  if (recipe().forward->transposable) {
    for (int64_t tap = 0; alike && tap < shape_.taps; ++tap) {
      alike = rows_share(take_tap(state_.forward, shape_, tap).transposed(), pattern);
    }
  }
  return alike ? pattern : Pattern(pattern.keep(), pattern.group());
}

// A union of candidates keeps more than N:M until the last are removed.
bool Layer::keeps_more(int64_t step) const {
  const auto more = recipe().forward->keeps_more;
  return more != nullptr && more(recipe(), step, settings_.total_steps);
}

void Layer::describe(Operands& operands) const {
  const Pattern pattern = operand_pattern();
  const Pattern unshared(pattern.keep(), pattern.group());
  const ForwardPart& part = *recipe().forward;
  operands.forward.mask = &state_.forward;
  operands.forward.pattern = pattern;
  operands.forward.ragged = keeps_more(state_.step);
  if (pattern.share() > 1) operands.forward.row_order = state_.row_order;
  operands.backward.mask = state_.backward.rows() > 0 ? &state_.backward : &state_.forward;
  operands.backward.pattern = part.transposable ? pattern : unshared;
  // Under a row order outputs are N:M in their places, and the depth of Wᵀ is packed as stored;
  // its rows, the inputs, share all the same.
  operands.backward.ragged = !part.transposable || !state_.row_order.empty();
  operands.planned = pattern;
  operands.masked_gradient = recipe().gradient->masked;
  if (operands.forward.ragged) {  // the pattern of its density stands for it
    const double kept = state_.forward.density() * pattern.group();
    const int keep =
        std::clamp(static_cast<int>(std::ceil(kept - 0.05)), pattern.keep(), pattern.group());
    operands.planned = Pattern(keep, pattern.group(), pattern.share());
  }
}

template <typename T>
const T* Layer::dense_copy(DenseCopy& copy, const Operand& operand, const float* values) {
  if (borrows_) {
    copy.swap(planner().spare<T>());
    copy.forget();
    borrower_ = &copy;
  }
  const Stopwatch watch(times_.pack);
  return copy.of<T>(operand, values, shape_);
}
template const float* Layer::dense_copy(DenseCopy&, const Operand&, const float*);
template const Bf16* Layer::dense_copy(DenseCopy&, const Operand&, const float*);

void Layer::effective_values(const float* weights, float* out) const {
  if (state_.sparse()) return forward_values(input_of({weights}), state_, out);
  std::copy_n(weights, shape_.outs * shape_.cols(), out);
}

void Layer::effective_values(const double* weights, double* out) const {
  if (state_.sparse() && !values_are_weights(recipe())) {
    return recipe().forward->values_in_double(input_of({}), state_, weights, out);
  }
  if (state_.sparse()) return masked_copy(weights, state_.forward, out);
  std::copy_n(weights, shape_.outs * shape_.cols(), out);
}

std::optional<Sampling> Layer::sampling(const Pass& pass, int64_t first_group) const {
  const Recipe& r = recipe();
  const bool dense_phase = !r.is_dense() && !state_.sparse();
  if (!r.samples_gradient() || dense_phase) return std::nullopt;
  SampleOptions options{.pattern = sample_pattern()};
  options.sampler = *r.gradient->sampler;
  options.key = {pass.seed, static_cast<uint64_t>(pass.step), static_cast<uint32_t>(state_.layer),
                 static_cast<uint32_t>(pass.call * settings_.replicas + settings_.replica)};
  options.first_group = first_group;
  return Sampling{options, r.fp8 ? std::optional(Fp8::kE5m2) : std::nullopt};
}

void Layer::score_gradient(const float* weights, const float* dw, float* d_scores) const {
  WEFT_CHECK(score_shape(), "{}: its recipe has no scores", label());
  std::fill_n(d_scores, score_shape()->size(), 0.0f);
  if (!state_.sparse()) return;
  recipe().forward->scores->gradient(input_of({weights}), state_, dw, d_scores);
}

void Layer::score_gradient(const double* weights, const double* dw, double* d_scores) const {
  WEFT_CHECK(score_shape(), "{}: its recipe has no scores", label());
  std::fill_n(d_scores, score_shape()->size(), 0.0);
  if (!state_.sparse()) return;
  recipe().forward->scores->gradient_in_double(input_of({}), state_, weights, dw, d_scores);
}

}  // namespace weft
