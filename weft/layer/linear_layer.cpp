#include "weft/layer/linear_layer.h"

#include <algorithm>
#include <type_traits>

#include "weft/core/error.h"
#include "weft/core/masked_copy.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/layer/activations.h"
#include "weft/layer/stopwatch.h"
#include "weft/pack/tiles.h"

namespace weft {
namespace {

// Activations as a product wants them: as they are, without gaps between rows, or rounded to FP8.
template <typename T>
class Prepared {
 public:
  explicit Prepared(MatrixView<const T> x) : view_(x) {}
  Prepared& closed() {
    if (view_.row_stride == view_.cols || view_.rows <= 1) return *this;
    AlignedBuffer<T> copy(static_cast<size_t>(view_.rows * view_.cols));
    for (int64_t r = 0; r < view_.rows; ++r) {
      std::copy_n(view_.row(r), view_.cols, copy.data() + r * view_.cols);
    }
    take(std::move(copy));
    return *this;
  }
  Prepared& in_fp8(bool round, Fp8 format) {
    if (round) take(rounded_to_fp8(closed().view_.data, view_.rows * view_.cols, format));
    return *this;
  }
  MatrixView<const T> view() const { return view_; }

 private:
  void take(AlignedBuffer<T> copy) {
    copy_ = std::move(copy);
    view_ = MatrixView<const T>(copy_.data(), view_.rows, view_.cols);
  }

  AlignedBuffer<T> copy_;
  MatrixView<const T> view_;
};

// dw from a dense gradient; a packed one, or entries to keep, may be added.
template <typename T>
LinearCall gradient_call(MatrixView<const T> g, MatrixView<const T> x, MatrixView<float> dw) {
  LinearCall call;
  call.product = Product::kBackwardWeight;
  call.activations = x;
  call.dense = g;
  call.result = dw;
  return call;
}

}  // namespace

void LinearLayer::Part::forget() {
  forward_mask = backward_mask = Mask();
  forward_pack.forget();
  backward_pack.forget();
}

void LinearLayer::forget_packs() {
  for (const auto& part : parts_) part->forget();
}

void LinearLayer::free_packs() {
  parts_.clear();
  gradient_panels_ = {};
  gradient_pack_ = {};
}

LinearLayer::Part& LinearLayer::part_of(const Outputs& some) {
  WEFT_CHECK(some.first >= 0 && some.count >= 0 && some.first + some.count <= shape().outs,
             "{}: outputs {} to {} of {}", label(), some.first, some.first + some.count,
             shape().outs);
  for (const auto& part : parts_) {
    if (part->outs == some) return *part;
  }
  parts_.push_back(std::make_unique<Part>());
  parts_.back()->outs = some;
  return *parts_.back();
}

std::optional<Pattern> LinearLayer::pattern_of(const Outputs& some, const Operands& own,
                                               const Operand& operand) const {
  return can_pack(some) ? own.pattern_of(operand) : std::nullopt;
}

bool LinearLayer::can_pack(const Outputs& some) const {
  if (some == all()) return true;
  const Pattern& pattern = settings().pattern;
  const bool alone = pattern.share() == 1 && !recipe().forward->transposable;
  const int64_t block = alone ? 1 : pattern.block(), end = some.first + some.count;
  return state().row_order.empty() && some.first % block == 0 &&
         (end % block == 0 || end == shape().outs);
}

Operand LinearLayer::operand_of(const Part& part, const Operand& whole, Mask& mask) const {
  Operand own = whole;
  if (is_all(part) || whole.mask == nullptr) return own;
  if (mask.cols() == 0) mask = whole.mask->slice_rows(part.outs.first, part.outs.count);
  own.mask = &mask;
  return own;
}

template <typename T>
std::optional<Layer::Request> LinearLayer::request_at(int64_t tokens, const Outputs& outs,
                                                      const std::optional<Pattern>& pattern,
                                                      bool masked_gradient) const {
  constexpr bool bf16 = std::is_same_v<T, Bf16>;
  // A dense operand leaves nothing to decide but the arithmetic, and fp32 has one only.
  if (tokens == 0 || (!pattern && !bf16)) return std::nullopt;
  return PlanRequest{{tokens, shape().ins, outs.count},
                     pattern.value_or(Pattern(1, 1)),
                     state().sparse() && recipe().forward->transposable,
                     products_per_pack(),
                     masked_gradient,
                     bf16 ? Precision::kBf16 : Precision::kFp32};
}

std::optional<LayerPlan> LinearLayer::plan_for(const Pattern& pattern) {
  if (tokens_ == 0) return std::nullopt;
  PlanRequest request{{tokens_, shape().ins, last_outs_.count},
                      pattern,
                      recipe().forward->transposable,
                      products_per_pack()};
  request.precision = settings().precision;
  request.masked_gradient = recipe().gradient->masked;
  return planner().known(request);
}

template <typename T>
void LinearLayer::forward(const LayerWeights& weights, MatrixView<const T> x, const float* bias,
                          MatrixView<T> y, const Outputs& some) {
  const Operands& own = operands<T>(weights);
  Part& part = part_of(some);
  tokens_ = x.rows;
  last_outs_ = some;
  Prepared<T> input(x);
  input.in_fp8(recipe().fp8, Fp8::kE4m3);
  LinearCall call;
  call.product = Product::kForward;
  call.activations = input.view();
  call.bias = bias;
  const auto request = request_at<T>(x.rows, some, pattern_of(some, own, own.forward));
  compute<T>(call.product, request, y, [&](const Way& way, MatrixView<T> result) {
    call.result = result;
    weight_product<T>(call, part, own.forward, forward_operand(weights), way, part.forward_pack,
                      part.forward_mask, dense_forward_);
  });
}

template <typename T>
void LinearLayer::backward_data(const LayerWeights& weights, MatrixView<const T> g,
                                MatrixView<T> dx, const Outputs& some) {
  const Operands& own = operands<T>(weights);
  Part& part = part_of(some);
  Prepared<T> gradient(g);
  gradient.in_fp8(recipe().fp8, Fp8::kE5m2);
  LinearCall call;
  call.product = Product::kBackwardData;
  call.activations = gradient.view();
  const auto request = request_at<T>(g.rows, some, pattern_of(some, own, own.backward));
  compute<T>(call.product, request, dx, [&](const Way& way, MatrixView<T> result) {
    call.result = result;
    weight_product<T>(call, part, own.backward, backward_operand(weights), way, part.backward_pack,
                      part.backward_mask, dense_backward_);
  });
  if (wants_cosine(weights)) compare_with_exact<T>(weights, part, gradient.view(), dx);
}

// Gives the call the operand that its way takes, and computes it.
template <typename T>
void LinearLayer::weight_product(LinearCall call, const Part& part, const Operand& whole,
                                 const float* values, const Way& way, WeightPack& pack, Mask& mask,
                                 DenseCopy& copy) {
  const int64_t outs = part.outs.count, ins = shape().ins, before = part.outs.first * ins;
  double had_it = 0.0;  // looking it up is not packing
  double& seconds = pack.has(way.sparse, way.compute) ? had_it : times_.pack;
  if (way.sparse) {
    const Stopwatch watch(seconds);
    const Operand w = operand_of(part, whole, mask);
    call.packed = &pack.sparse(w, values + before, {outs, ins, 1}, way.compute);
  } else {
    const MatrixView<const T> dense(dense_copy<T>(copy, whole, values) + before, outs, ins);
    call.dense = dense;
    if constexpr (std::is_same_v<T, Bf16>) {
      const Stopwatch watch(seconds);
      if (way.compute == Precision::kBf16) call.tiles = &pack.tiles(dense);
    }
  }
  const Stopwatch watch(times_.of(call.product));
  multiply(call, way.compute);
}

// dx against that of the whole forward operand.
template <typename T>
void LinearLayer::compare_with_exact(const LayerWeights& weights, const Part& part,
                                     MatrixView<const T> g, MatrixView<const T> dx) {
  AlignedBuffer<float> values(static_cast<size_t>(shape().outs * shape().ins));
  effective_values(weights.values, values.data());
  const auto operand = round_like(dx.data, std::move(values));
  AlignedBuffer<T> exact(static_cast<size_t>(dx.rows * dx.cols));
  LinearCall call;
  call.product = Product::kBackwardData;
  call.activations = g;
  call.dense = MatrixView<const T>(operand.data() + part.outs.first * shape().ins, part.outs.count,
                                   shape().ins);
  call.result = MatrixView<T>(exact.data(), dx.rows, dx.cols);
  multiply(call);
  Prepared<T> found(dx);
  set_cosine(
      cosine(found.closed().view().data, static_cast<const T*>(exact.data()), dx.rows * dx.cols));
}

template <typename T>
void LinearLayer::backward_weight(const LayerWeights& weights, MatrixView<const T> g,
                                  MatrixView<const T> x, const Pass& pass, MatrixView<float> dw,
                                  const Outputs& some) {
  const Operands& own = operands<T>(weights);
  Part& part = part_of(some);
  WEFT_CHECK(dw.row_stride == dw.cols, "{}: the rows of dw must be contiguous", label());
  const int64_t group = sample_pattern().group();
  const std::optional<Sampling> sample = sampling(pass, pass.first_token / group);
  const bool fp8 = recipe().fp8;
  Prepared<T> input(x), gradient(g);
  const MatrixView<const T> in = input.in_fp8(fp8, Fp8::kE5m2).view();
  if (sample) {
    WEFT_CHECK(pass.first_token >= 0 && pass.first_token % group == 0,
               "{}: a first token of {}: samples are drawn of groups of {}", label(),
               pass.first_token, group);
    const MatrixView<const T> whole = gradient.closed().view();  // rounded after it is drawn
    return compute<float>(Product::kBackwardWeight,
                          request_at<T>(g.rows, some, sample->options.pattern), dw,
                          [&](const Way& way, MatrixView<float> result) {
                            sampled_weight(whole, in, *sample, way, result);
                          });
  }
  const MatrixView<const T> rounded = gradient.in_fp8(fp8, Fp8::kE5m2).view();
  if (own.masked_gradient) {
    return compute<float>(Product::kBackwardWeight, request_at<T>(g.rows, some, own.planned, true),
                          dw, [&](const Way& way, MatrixView<float> result) {
                            masked_weight(rounded, in, own.planned, part, way, result);
                          });
  }
  compute<float>(Product::kBackwardWeight, request_at<T>(g.rows, some, std::nullopt), dw,
                 [&](const Way& way, MatrixView<float> result) {
                   const Stopwatch watch(times_.of(Product::kBackwardWeight));
                   dense_weight(rounded, in, way, result);
                 });
}

template <typename T>
void LinearLayer::dense_weight(MatrixView<const T> g, MatrixView<const T> x, const Way& way,
                               MatrixView<float> dw) {
  multiply(gradient_call(g, x, dw), way.compute);
}

template <typename T>
void LinearLayer::sampled_weight(MatrixView<const T> g, MatrixView<const T> x,
                                 const Sampling& sampling, const Way& way, MatrixView<float> dw) {
  const Pattern& pattern = sampling.options.pattern;
  if (way.sparse) {
    const bool tiles = way.compute == Precision::kBf16;
    {
      const Stopwatch watch(times_.pack);
      const MatrixView<const float> wide(as_floats(g.data, g.rows * g.cols), g.rows, g.cols);
      PackedMatrix& panels = tiles ? gradient_panels_ : gradient_pack_;
      panels = pack_panels_sampled(wide, sampling.options,
                                   tiles ? tile_panel(pattern) : tile_for(pattern),
                                   sampling.rounding, std::move(panels));
      if (tiles) {
        gradient_pack_ = tiles_of(gradient_panels_, std::move(gradient_pack_));
      } else {
        round_like(g.data, {&panels, 1});
      }
    }
    const Stopwatch watch(times_.of(Product::kBackwardWeight));
    LinearCall call = gradient_call(g, x, dw);
    call.packed = &gradient_pack_;
    return multiply(call, way.compute);
  }
  const Stopwatch watch(times_.of(Product::kBackwardWeight));
  const float* wide = as_floats(g.data, g.rows * g.cols);
  AlignedBuffer<float> scales(static_cast<size_t>(g.rows * g.cols));
  sample_scales({wide, g.rows, g.cols}, sampling.options, {scales.data(), g.rows, g.cols});
  const auto sample = round_like(g.data, sampled(wide, std::move(scales), sampling.rounding));
  dense_weight(MatrixView<const T>(sample.data(), g.rows, g.cols), x, way, dw);
}

template <typename T>
void LinearLayer::masked_weight(MatrixView<const T> g, MatrixView<const T> x,
                                const Pattern& planned_as, Part& part, const Way& way,
                                MatrixView<float> dw) {
  Operand whole;
  whole.mask = &state().forward;
  const Mask& mask = *operand_of(part, whole, part.forward_mask).mask;
  LinearCall call = gradient_call(g, x, dw);
  if (way.sparse) {
    const Stopwatch watch(times_.pack);
    call.kept = &part.kept.of(mask, planned_as);
  }
  const Stopwatch watch(times_.of(Product::kBackwardWeight));
  if (way.sparse) return multiply(call);
  dense_weight(g, x, way, dw);
  masked_copy(dw.data, mask, dw.data);
}

#define WEFT_LINEAR_LAYER_OF(T)                                                                   \
  template void LinearLayer::forward(const LayerWeights&, MatrixView<const T>, const float*,      \
                                     MatrixView<T>, const Outputs&);                              \
  template void LinearLayer::backward_data(const LayerWeights&, MatrixView<const T>,              \
                                           MatrixView<T>, const Outputs&);                        \
  template void LinearLayer::backward_weight(const LayerWeights&, MatrixView<const T>,            \
                                             MatrixView<const T>, const Pass&, MatrixView<float>, \
                                             const Outputs&);
WEFT_LINEAR_LAYER_OF(float)
WEFT_LINEAR_LAYER_OF(Bf16)
#undef WEFT_LINEAR_LAYER_OF

}  // namespace weft
