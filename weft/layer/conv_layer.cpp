#include "weft/layer/conv_layer.h"

#include "weft/core/error.h"
#include "weft/core/masked_copy.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/kernels.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/layer/activations.h"
#include "weft/layer/stopwatch.h"

namespace weft {
namespace {

// Calls visit(place in `view`, place in NCHW) for every element.
template <typename T, typename Visit>
void for_each_element(const ImageView<T>& view, Visit visit) {
  const auto& [images, channels, height, width] = view.sizes;
  int64_t at = 0;
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t h = 0; h < height; ++h) {
        T* row = view.data + n * view.strides[0] + c * view.strides[1] + h * view.strides[2];
        for (int64_t w = 0; w < width; ++w) visit(row[w * view.strides[3]], at++);
      }
    }
  }
}

// An input as the kernels want it: NCHW without gaps, and rounded to FP8 if the recipe says so.
template <typename T>
class Input {
 public:
  Input(const ImageView<const T>& view, bool fp8, Fp8 format) : data_(view.data) {
    if (!view.is_nchw()) {
      copy_ = AlignedBuffer<T>(static_cast<size_t>(view.size()));
      for_each_element(view, [&](const T& value, int64_t at) { copy_.data()[at] = value; });
      data_ = copy_.data();
    }
    if (!fp8) return;
    copy_ = rounded_to_fp8(data_, view.size(), format);
    data_ = copy_.data();
  }
  const T* data() const { return data_; }

 private:
  AlignedBuffer<T> copy_;
  const T* data_;
};

// A result that is written as NCHW, and goes where its view says when it is done.
template <typename T>
class Output {
 public:
  explicit Output(const ImageView<T>& view) : view_(view), data_(view.data) {
    if (view.is_nchw()) return;
    copy_ = AlignedBuffer<T>(static_cast<size_t>(view.size()));
    data_ = copy_.data();
  }
  T* data() const { return data_; }
  MatrixView<T> matrix() const { return {data_, 1, view_.size()}; }
  void finish() const {
    if (data_ == view_.data) return;
    for_each_element(view_, [&](T& value, int64_t at) { value = data_[at]; });
  }

 private:
  ImageView<T> view_;
  AlignedBuffer<T> copy_;
  T* data_;
};

void require_sizes(const std::array<int64_t, 4>& sizes, const ConvShape& shape, const char* what) {
  const std::array<int64_t, 4> want = {shape.images, shape.outs, shape.out_height(),
                                       shape.out_width()};
  WEFT_CHECK(sizes == want, "{} of {}x{}x{}x{} for a convolution that makes {}x{}x{}x{}", what,
             sizes[0], sizes[1], sizes[2], sizes[3], want[0], want[1], want[2], want[3]);
}

PanelOptions conv_options(const Operand& operand, const ConvShape& shape) {
  PanelOptions options = operand.pack_options();
  options.tile = conv_tile_for(operand.density(), options.pattern.share(), shape.taps());
  return options;
}

// A product from a dense operand; a packed one may be added.
template <typename T, typename Result>
ConvCall call_of(Product product, const ConvShape& shape, const T* activations, const T* dense,
                 Result* result) {
  ConvCall call;
  call.product = product;
  call.shape = shape;
  call.activations = activations;
  call.dense = dense;
  call.result = result;
  return call;
}

}  // namespace

ConvShape ConvLayer::shape_for(const std::array<int64_t, 4>& x_sizes) const {
  WEFT_CHECK(x_sizes[1] == geometry_.ins, "{}: an input of {} channels for a layer of {}", label(),
             x_sizes[1], geometry_.ins);
  ConvShape shape = geometry_;
  shape.images = x_sizes[0];
  shape.height = x_sizes[2];
  shape.width = x_sizes[3];
  try {
    shape.check();
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", label(), error.what()));
  }
  return shape;
}

// Groups begin with every image (kernel/conv/pack_conv.h), so the last of an image may be short.
int64_t ConvLayer::first_group_of(const Pass& pass, const ConvShape& shape) const {
  const int64_t positions = shape.positions(), group = sample_pattern().group();
  WEFT_CHECK(pass.first_token >= 0 && pass.first_token % positions == 0,
             "{}: a first token of {}: images have {} positions", label(), pass.first_token,
             positions);
  return pass.first_token / positions * ((positions + group - 1) / group);
}

std::optional<Layer::Request> ConvLayer::request_at(const ConvShape& shape,
                                                    const std::optional<Pattern>& pattern,
                                                    bool masked_gradient) const {
  if (shape.images == 0 || !pattern) return std::nullopt;
  return ConvRequest{shape, *pattern, state().sparse() && recipe().forward->transposable,
                     products_per_pack(), masked_gradient};
}

void ConvLayer::free_packs() {
  forget_packs();
  forward_pack_.clear();
  backward_pack_.clear();
  gradient_pack_.clear();
  kept_ = {};
}

std::optional<LayerPlan> ConvLayer::plan_for(const Pattern& pattern) {
  if (last_.images == 0) return std::nullopt;
  return planner().known(ConvRequest{last_, pattern, recipe().forward->transposable,
                                     products_per_pack(), recipe().gradient->masked});
}

template <typename T>
void ConvLayer::forward(const LayerWeights& weights, ImageView<const T> x, const float* bias,
                        ImageView<T> y) {
  const ConvShape shape = last_ = shape_for(x.sizes);
  require_sizes(y.sizes, shape, "an output");
  const Input<T> input(x, recipe().fp8, Fp8::kE4m3);
  const T* in = input.data();
  const Output<T> output(y);
  const Operands& own = operands<T>(weights);
  const Operand& w = own.forward;
  const float* values = forward_operand(weights);
  compute<T>(Product::kForward, request_at(shape, own.pattern_of(w)), output.matrix(),
             [&](const Way& way, MatrixView<T> result) {
               if (way.sparse && !packed_forward_) {
                 const Stopwatch watch(times_.pack);
                 forward_pack_ = pack_conv(values, *w.mask, shape, conv_options(w, shape),
                                           std::move(forward_pack_));
                 packed_forward_ = true;
               }
               const T* dense = way.sparse ? nullptr : dense_copy<T>(dense_forward_, w, values);
               ConvCall call = call_of(Product::kForward, shape, in, dense, result.data);
               if (way.sparse) call.packed = &forward_pack_;
               call.bias = bias;
               const Stopwatch watch(times_.of(Product::kForward));
               multiply(call);
             });
  output.finish();
}

template <typename T>
void ConvLayer::backward_data(const LayerWeights& weights, ImageView<const T> g, ImageView<T> dx) {
  const ConvShape shape = shape_for(dx.sizes);
  require_sizes(g.sizes, shape, "a gradient");
  const Input<T> gradient(g, recipe().fp8, Fp8::kE5m2);
  const T* in = gradient.data();
  const Output<T> output(dx);
  const Operands& own = operands<T>(weights);
  const Operand& w = own.backward;
  const float* values = backward_operand(weights);
  compute<T>(Product::kBackwardData, request_at(shape, own.pattern_of(w)), output.matrix(),
             [&](const Way& way, MatrixView<T> result) {
               if (way.sparse && !packed_backward_) {
                 const Stopwatch watch(times_.pack);
                 backward_pack_ = pack_conv_transposed(
                     values, *w.mask, shape, conv_options(w, shape), std::move(backward_pack_));
                 packed_backward_ = true;
               }
               const T* dense = way.sparse ? nullptr : dense_copy<T>(dense_backward_, w, values);
               ConvCall call = call_of(Product::kBackwardData, shape, in, dense, result.data);
               if (way.sparse) call.packed = &backward_pack_;
               const Stopwatch watch(times_.of(Product::kBackwardData));
               multiply(call);
             });
  if (wants_cosine(weights)) compare_with_exact<T>(weights, shape, in, output.data());
  output.finish();
}

// dx against that of the whole forward operand.
template <typename T>
void ConvLayer::compare_with_exact(const LayerWeights& weights, const ConvShape& shape, const T* g,
                                   const T* dx) {
  AlignedBuffer<float> values(static_cast<size_t>(shape.w_size()));
  effective_values(weights.values, values.data());
  const auto operand = round_like(dx, std::move(values));
  AlignedBuffer<T> exact(static_cast<size_t>(shape.x_size()));
  multiply(call_of<T>(Product::kBackwardData, shape, g, operand.data(), exact.data()));
  set_cosine(cosine(dx, static_cast<const T*>(exact.data()), shape.x_size()));
}

template <typename T>
void ConvLayer::backward_weight(const LayerWeights& weights, ImageView<const T> g,
                                ImageView<const T> x, const Pass& pass, float* dw) {
  const ConvShape shape = shape_for(x.sizes);
  require_sizes(g.sizes, shape, "a gradient");
  const Operands& own = operands<T>(weights);
  const std::optional<Sampling> sample = sampling(pass, first_group_of(pass, shape));
  const bool fp8 = recipe().fp8;
  const Input<T> input(x, fp8, Fp8::kE5m2);
  const Input<T> gradient(g, fp8 && !sample, Fp8::kE5m2);  // a sample is rounded after it is drawn
  const T *from_g = gradient.data(), *from_x = input.data();
  if (sample) {
    return compute<float>(Product::kBackwardWeight, request_at(shape, sample->options.pattern),
                          MatrixView<float>(dw, 1, shape.w_size()),
                          [&](const Way& way, MatrixView<float> result) {
                            sampled_weight(shape, from_g, from_x, *sample, way, result.data);
                          });
  }
  if (own.masked_gradient) {
    return compute<float>(Product::kBackwardWeight, request_at(shape, own.planned, true),
                          MatrixView<float>(dw, 1, shape.w_size()),
                          [&](const Way& way, MatrixView<float> result) {
                            masked_weight(shape, from_g, from_x, own.planned, way, result.data);
                          });
  }
  note(Product::kBackwardWeight, {});
  const Stopwatch watch(times_.of(Product::kBackwardWeight));
  multiply(call_of(Product::kBackwardWeight, shape, from_x, from_g, dw));
}

template <typename T>
void ConvLayer::masked_weight(const ConvShape& shape, const T* g, const T* x,
                              const Pattern& planned_as, const Way& way, float* dw) {
  const Mask& mask = state().forward;
  ConvCall call = call_of(Product::kBackwardWeight, shape, x, g, dw);
  if (way.sparse) {
    const Stopwatch watch(times_.pack);
    call.kept = &kept_.of(mask, planned_as, shape.taps());
  }
  const Stopwatch watch(times_.of(Product::kBackwardWeight));
  multiply(call);
  if (!way.sparse) masked_copy(dw, mask, dw);
}

template <typename T>
void ConvLayer::sampled_weight(const ConvShape& shape, const T* g, const T* x,
                               const Sampling& sampling, const Way& way, float* dw) {
  const SampleOptions& options = sampling.options;
  if (way.sparse) {
    {
      const Stopwatch watch(times_.pack);
      gradient_pack_ = pack_conv_sampled(as_floats(g, shape.y_size()), shape, options,
                                         conv_gradient_tile_for(options.pattern, shape.group_ins()),
                                         sampling.rounding, std::move(gradient_pack_));
      round_like(g, gradient_pack_);
    }
    const Stopwatch watch(times_.of(Product::kBackwardWeight));
    ConvCall call = call_of(Product::kBackwardWeight, shape, x, g, dw);
    call.packed = &gradient_pack_;
    return multiply(call);
  }
  const Stopwatch watch(times_.of(Product::kBackwardWeight));
  const float* wide = as_floats(g, shape.y_size());
  AlignedBuffer<float> scales(static_cast<size_t>(shape.y_size()));
  sample_conv_scales(wide, shape, options, scales.data());
  const auto sample = round_like(g, sampled(wide, std::move(scales), sampling.rounding));
  multiply(call_of<T>(Product::kBackwardWeight, shape, x, sample.data(), dw));
}

#define WEFT_CONV_LAYER_OF(T)                                                                    \
  template void ConvLayer::forward(const LayerWeights&, ImageView<const T>, const float*,        \
                                   ImageView<T>);                                                \
  template void ConvLayer::backward_data(const LayerWeights&, ImageView<const T>, ImageView<T>); \
  template void ConvLayer::backward_weight(const LayerWeights&, ImageView<const T>,              \
                                           ImageView<const T>, const Pass&, float*);
WEFT_CONV_LAYER_OF(float)
WEFT_CONV_LAYER_OF(Bf16)
#undef WEFT_CONV_LAYER_OF

}  // namespace weft
