#include "weft/layer/products.h"

#include <chrono>
#include <type_traits>

#include "weft/core/masked_copy.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/conv/dense_conv.h"
#include "weft/kernel/dense/dense.h"
#include "weft/kernel/sparse.h"
#include "weft/pack/tiles.h"

namespace weft {
namespace {

// Adds the time that it lives to a sum.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

double& time_of(LayerTimes& times, Product product) {
  return times.products[static_cast<size_t>(product)];
}

// The sample of g as a dense matrix, for a dense product.
AlignedBuffer<float> sampled(const float* g, const float* scales, int64_t size,
                             const std::optional<Fp8>& rounding) {
  AlignedBuffer<float> sample(static_cast<size_t>(size));
  for (int64_t i = 0; i < size; ++i) {
    sample.data()[i] = scales[i] == 0.0f ? 0.0f : g[i] * scales[i];
  }
  if (rounding) {
    const std::span<float> all(sample.data(), sample.size());
    round_to_fp8(all, *rounding, all);
  }
  return sample;
}

// What is sampled: g in fp32, until something else is expanded.
const float* as_floats(const float* g, int64_t) { return g; }
const float* as_floats(const Bf16* g, int64_t size) {
  float* wide = fp32_copy(CopyOf::kFirst, size);
  expand(g, size, wide);
  return wide;
}

// What a product takes of a sample: of the type of its other operand.
void round_like(const float*, std::span<PackedMatrix>) {}
void round_like(const Bf16*, std::span<PackedMatrix> packed) { round_packed_to_bf16(packed); }
AlignedBuffer<float> round_like(const float*, AlignedBuffer<float> sample) { return sample; }
AlignedBuffer<Bf16> round_like(const Bf16*, const AlignedBuffer<float>& sample) {
  AlignedBuffer<Bf16> rounded(sample.size());
  round_to_bf16(sample.data(), static_cast<int64_t>(sample.size()), rounded.data());
  return rounded;
}

}  // namespace

void LayerProducts::set(const LayerOperands& operands) {
  operands_ = operands;
  dense_forward_.forget();
  dense_backward_.forget();
  forget_packs();
}

template <typename Request>
LayerProducts::Way LayerProducts::planned(const std::string& key, const Request& request,
                                          Product product) {
  auto found = plans_.find(key);
  if (found == plans_.end()) found = plans_.emplace(key, planner_->plan(request)).first;
  const ProductPlan& plan = found->second[product];
  return {plan.choice == Choice::kSparse, plan.arithmetic.compute};
}

template <typename T>
const T* LayerProducts::dense_copy(DenseCopy& copy, const Operand& operand) {
  const Stopwatch watch(times_.pack);
  return copy.of<T>(operand, shape_);
}

std::string LayerProducts::choices() const {
  return fmt::format("{}/{}/{}", choices_[0], choices_[1], choices_[2]);
}

void LayerProducts::note(Product product, const Way& way) {
  choices_[static_cast<size_t>(product)] =
      path_text(way.sparse ? Choice::kSparse : Choice::kDense, {.compute = way.compute});
}

void LinearProducts::forget_packs() {
  forward_pack_.forget();
  backward_pack_.forget();
  kept_.reset();
}

template <typename T>
LayerProducts::Way LinearProducts::way_at(int64_t tokens, Product product,
                                          const std::optional<Pattern>& pattern,
                                          bool masked_gradient) {
  constexpr bool bf16 = std::is_same_v<T, Bf16>;
  // A dense operand leaves nothing to decide but the arithmetic, and fp32 has one only.
  if (tokens == 0 || (!pattern && !bf16)) return {};
  PlanRequest request{{tokens, shape_.ins, shape_.outs},
                      pattern.value_or(Pattern(1, 1)),
                      operands_.transposable,
                      products_per_pack_,
                      masked_gradient};
  if (bf16) request.precision = Precision::kBf16;
  const std::string key =
      fmt::format("{} {} {} {}", tokens, request.pattern.str(), masked_gradient, bf16);
  return planned(key, request, product);
}

std::optional<LayerPlan> LinearProducts::plan_for(const Pattern& pattern, bool transposable,
                                                  bool masked_gradient) {
  if (tokens_ == 0) return std::nullopt;
  PlanRequest request{
      {tokens_, shape_.ins, shape_.outs}, pattern, transposable, products_per_pack_};
  request.precision = operands_.forward.precision;
  LayerPlan plan = planner().plan(request);
  if (masked_gradient) {
    request.masked_gradient = true;
    const auto gradient = static_cast<size_t>(Product::kBackwardWeight);
    plan.products[gradient] = planner().plan(request).products[gradient];
  }
  return plan;
}

namespace {

std::optional<Pattern> pattern_of(const Operand& operand, const Pattern& planned) {
  return operand.mask == nullptr ? std::nullopt : std::optional(planned);
}

}  // namespace

template <typename T>
void LinearProducts::forward(MatrixView<const T> x, const float* bias, MatrixView<T> y) {
  tokens_ = x.rows;
  LinearCall call;
  call.product = Product::kForward;
  call.activations = x;
  call.bias = bias;
  call.result = y;
  weight_product<T>(call, operands_.forward, x.rows, forward_pack_, dense_forward_);
}

template <typename T>
void LinearProducts::backward_data(MatrixView<const T> g, MatrixView<T> dx) {
  LinearCall call;
  call.product = Product::kBackwardData;
  call.activations = g;
  call.result = dx;
  weight_product<T>(call, operands_.backward, g.rows, backward_pack_, dense_backward_);
}

// Gives the call the operand that its way takes, and computes it.
template <typename T>
void LinearProducts::weight_product(LinearCall call, const Operand& w, int64_t tokens,
                                    WeightPack& pack, DenseCopy& copy) {
  const Way way = way_at<T>(tokens, call.product, pattern_of(w, operands_.planned));
  note(call.product, way);
  double had_it = 0.0;  // looking it up is not packing
  double& seconds = pack.has(way.sparse, way.compute) ? had_it : times_.pack;
  if (way.sparse) {
    const Stopwatch watch(seconds);
    call.packed = &pack.sparse(w, shape_, way.compute);
  } else {
    const MatrixView<const T> dense(dense_copy<T>(copy, w), shape_.outs, shape_.ins);
    call.dense = dense;
    if constexpr (std::is_same_v<T, Bf16>) {
      const Stopwatch watch(seconds);
      if (way.compute == Compute::kBf16) call.tiles = &pack.tiles(dense);
    }
  }
  const Stopwatch watch(time_of(times_, call.product));
  multiply(call, way.compute);
}

template <typename T>
void LinearProducts::backward_weight(MatrixView<const T> g, MatrixView<const T> x,
                                     const std::optional<Sampling>& sampling,
                                     MatrixView<float> dw) {
  if (sampling) return sampled_weight(g, x, *sampling, dw);
  if (operands_.masked_gradient) return masked_weight(g, x, dw);
  const Way way = way_at<T>(g.rows, Product::kBackwardWeight, std::nullopt);
  note(Product::kBackwardWeight, way);
  const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
  dense_weight(g, x, way, dw);
}

template <typename T>
void LinearProducts::dense_weight(MatrixView<const T> g, MatrixView<const T> x, const Way& way,
                                  MatrixView<float> dw) {
  if constexpr (std::is_same_v<T, Bf16>) {
    if (way.compute == Compute::kBf16) return dense_backward_weight_on_tiles(g, x, 0.0f, dw);
  }
  dense_backward_weight(g, x, 0.0f, dw);
}

template <typename T>
void LinearProducts::sampled_weight(MatrixView<const T> g, MatrixView<const T> x,
                                    const Sampling& sampling, MatrixView<float> dw) {
  const Pattern& pattern = sampling.options.pattern;
  const Way way = way_at<T>(g.rows, Product::kBackwardWeight, pattern);
  note(Product::kBackwardWeight, way);
  if (way.sparse) {
    const bool tiles = way.compute == Compute::kBf16;
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
    const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
    return sparse_backward_weight(gradient_pack_, x, 0.0f, dw);
  }
  const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
  const float* wide = as_floats(g.data, g.rows * g.cols);
  AlignedBuffer<float> scales(static_cast<size_t>(g.rows * g.cols));
  sample_scales({wide, g.rows, g.cols}, sampling.options, {scales.data(), g.rows, g.cols});
  const auto sample =
      round_like(g.data, sampled(wide, scales.data(), g.rows * g.cols, sampling.rounding));
  dense_weight(MatrixView<const T>(sample.data(), g.rows, g.cols), x, way, dw);
}

template <typename T>
void LinearProducts::masked_weight(MatrixView<const T> g, MatrixView<const T> x,
                                   MatrixView<float> dw) {
  const Mask& mask = *operands_.forward.mask;
  const Way way =
      way_at<T>(g.rows, Product::kBackwardWeight, operands_.planned, /*masked_gradient=*/true);
  note(Product::kBackwardWeight, way);
  if (way.sparse && !kept_) {
    const Stopwatch watch(times_.pack);
    kept_.emplace(mask, operands_.planned);
  }
  const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
  if (way.sparse) return masked_backward_weight(g, x, *kept_, 0.0f, dw);
  dense_weight(g, x, way, dw);
  masked_copy(dw.data, mask, dw.data);
}

LayerProducts::Way ConvProducts::way_at(const ConvShape& shape, Product product,
                                        const Pattern& pattern) {
  if (shape.images == 0) return {};
  const ConvRequest request{shape, pattern, operands_.transposable, products_per_pack_};
  return planned(shape.spec() + " " + pattern.str(), request, product);
}

std::optional<LayerPlan> ConvProducts::plan_for(const Pattern& pattern, bool transposable,
                                                bool masked_gradient) {
  if (last_.images == 0) return std::nullopt;
  LayerPlan plan = planner().plan({last_, pattern, transposable, products_per_pack_});
  if (masked_gradient) {  // computed dense, and masked
    ProductPlan& gradient = plan.products[static_cast<size_t>(Product::kBackwardWeight)];
    gradient = ProductPlan();
    gradient.kind = ProductKind::kBackwardWeight;
    gradient.reason = "masked";
  }
  return plan;
}

template <typename T>
void ConvProducts::forward(const ConvShape& shape, const T* x, const float* bias, T* y) {
  last_ = shape;
  const Operand& w = operands_.forward;
  const bool sparse =
      w.mask != nullptr && way_at(shape, Product::kForward, operands_.planned).sparse;
  note(Product::kForward, {sparse});
  if (sparse && !packed_forward_) {
    const Stopwatch watch(times_.pack);
    forward_pack_ = pack_conv(w.values, *w.mask, shape, w.pack_options());
    packed_forward_ = true;
  }
  const T* dense = sparse ? nullptr : dense_copy<T>(dense_forward_, w);
  const Stopwatch watch(time_of(times_, Product::kForward));
  if (sparse) {
    sparse_conv_forward(shape, x, forward_pack_, bias, 0.0f, y);
  } else {
    dense_conv_forward(shape, x, dense, bias, 0.0f, y);
  }
}

template <typename T>
void ConvProducts::backward_data(const ConvShape& shape, const T* g, T* dx) {
  const Operand& w = operands_.backward;
  const bool sparse =
      w.mask != nullptr && way_at(shape, Product::kBackwardData, operands_.planned).sparse;
  note(Product::kBackwardData, {sparse});
  if (sparse && !packed_backward_) {
    const Stopwatch watch(times_.pack);
    backward_pack_ = pack_conv_transposed(w.values, *w.mask, shape, w.pack_options());
    packed_backward_ = true;
  }
  const T* dense = sparse ? nullptr : dense_copy<T>(dense_backward_, w);
  const Stopwatch watch(time_of(times_, Product::kBackwardData));
  if (sparse) {
    sparse_conv_backward_data(shape, g, backward_pack_, 0.0f, dx);
  } else {
    dense_conv_backward_data(shape, g, dense, 0.0f, dx);
  }
}

template <typename T>
void ConvProducts::backward_weight(const ConvShape& shape, const T* g, const T* x,
                                   const std::optional<Sampling>& sampling, float* dw) {
  const bool sparse =
      sampling && way_at(shape, Product::kBackwardWeight, sampling->options.pattern).sparse;
  note(Product::kBackwardWeight, {sparse});
  if (sparse) {
    {
      const Stopwatch watch(times_.pack);
      gradient_pack_ = pack_conv_sampled(as_floats(g, shape.y_size()), shape, sampling->options,
                                         tile_for(sampling->options.pattern), sampling->rounding,
                                         std::move(gradient_pack_));
      round_like(g, gradient_pack_);
    }
    const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
    sparse_conv_backward_weight(shape, gradient_pack_, x, 0.0f, dw);
    return;
  }
  const Stopwatch watch(time_of(times_, Product::kBackwardWeight));
  if (!sampling) {
    dense_conv_backward_weight(shape, g, x, 0.0f, dw);
    if (operands_.masked_gradient) masked_copy(dw, *operands_.forward.mask, dw);
    return;
  }
  const float* wide = as_floats(g, shape.y_size());
  AlignedBuffer<float> scales(static_cast<size_t>(shape.y_size()));
  sample_conv_scales(wide, shape, sampling->options, scales.data());
  const auto sample =
      round_like(g, sampled(wide, scales.data(), shape.y_size(), sampling->rounding));
  dense_conv_backward_weight(shape, sample.data(), x, 0.0f, dw);
}

#define WEFT_PRODUCTS_OF(T)                                                                \
  template void LinearProducts::forward(MatrixView<const T>, const float*, MatrixView<T>); \
  template void LinearProducts::backward_data(MatrixView<const T>, MatrixView<T>);         \
  template void LinearProducts::backward_weight(MatrixView<const T>, MatrixView<const T>,  \
                                                const std::optional<Sampling>&,            \
                                                MatrixView<float>);                        \
  template void ConvProducts::forward(const ConvShape&, const T*, const float*, T*);       \
  template void ConvProducts::backward_data(const ConvShape&, const T*, T*);               \
  template void ConvProducts::backward_weight(const ConvShape&, const T*, const T*,        \
                                              const std::optional<Sampling>&, float*);
WEFT_PRODUCTS_OF(float)
WEFT_PRODUCTS_OF(Bf16)
#undef WEFT_PRODUCTS_OF

}  // namespace weft
