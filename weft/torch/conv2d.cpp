#include "weft/torch/conv2d.h"

#include <variant>

#include "weft/torch/tensor_math.h"

namespace weft {
namespace {

// get_if is found by the type of its argument: c10's variant in libtorch 1.13, std's later.
using PaddingSame = torch::enumtype::kSame;

std::array<int64_t, 4> sizes_of(const torch::Tensor& x) {
  return {x.size(0), x.size(1), x.size(2), x.size(3)};
}

template <typename T>
ImageView<T> images_of(const torch::Tensor& x) {
  return {data_of<T>(x), sizes_of(x)};
}

int64_t same_padding(int64_t kernel, int64_t dilation) { return dilation * (kernel - 1) / 2; }

ConvShape geometry_of(const torch::nn::Conv2dOptions& options) {
  ConvShape s;
  s.ins = options.in_channels();
  s.outs = options.out_channels();
  s.groups = options.groups();
  s.kernel_h = options.kernel_size()->at(0);
  s.kernel_w = options.kernel_size()->at(1);
  s.stride_h = options.stride()->at(0);
  s.stride_w = options.stride()->at(1);
  s.dilation_h = options.dilation()->at(0);
  s.dilation_w = options.dilation()->at(1);
  if (const auto* sizes = get_if<torch::ExpandingArray<2>>(&options.padding())) {
    s.pad_h = (*sizes)->at(0);
    s.pad_w = (*sizes)->at(1);
  } else if (get_if<PaddingSame>(&options.padding()) != nullptr) {
    s.pad_h = same_padding(s.kernel_h, s.dilation_h);
    s.pad_w = same_padding(s.kernel_w, s.dilation_w);
  }
  return s;
}

}  // namespace

// ConvImpl keeps its options in a form for any number of dimensions and for transposed ones.
torch::nn::Conv2dOptions Conv2dImpl::options_of(const torch::nn::Conv2dImpl& layer) {
  return torch::nn::Conv2dOptions(layer.options.in_channels(), layer.options.out_channels(),
                                  layer.options.kernel_size())
      .stride(layer.options.stride())
      .dilation(layer.options.dilation())
      .groups(layer.options.groups())
      .bias(layer.options.bias())
      .padding(layer.options.padding())
      .padding_mode(layer.options.padding_mode());
}

std::string Conv2dImpl::cannot_take(const torch::nn::Conv2dOptions& options) {
  if (get_if<torch::enumtype::kZeros>(&options.padding_mode()) == nullptr) {
    return "pads with other values than zeros";
  }
  const ConvShape s = geometry_of(options);
  if (get_if<PaddingSame>(&options.padding()) != nullptr &&
      (s.dilation_h * (s.kernel_h - 1) % 2 != 0 || s.dilation_w * (s.kernel_w - 1) % 2 != 0)) {
    return "pads its sides differently";
  }
  return "";
}

Conv2dImpl::Conv2dImpl(const torch::nn::Conv2dOptions& options)
    : LayerModule("weft::Conv2d"), options_(options) {
  ConvShape smallest =
      geometry_of(options);  // of the smallest image: torch does not check all sizes
  smallest.images = 1;
  smallest.height = std::max<int64_t>(1, smallest.dilation_h * (smallest.kernel_h - 1) + 1);
  smallest.width = std::max<int64_t>(1, smallest.dilation_w * (smallest.kernel_w - 1) + 1);
  smallest.check();
  const torch::nn::Conv2d torchs(options);  // its initialisation
  weight = register_parameter("weight", torchs->weight.detach());
  if (torchs->bias.defined()) bias = register_parameter("bias", torchs->bias.detach());
  init(options);
}

Conv2dImpl::Conv2dImpl(const torch::nn::Conv2dImpl& other)
    : LayerModule("weft::Conv2d"), options_(options_of(other)) {
  weight = other.weight;
  init(options_);
}

void Conv2dImpl::init(const torch::nn::Conv2dOptions& options) {
  const std::string problem = cannot_take(options);
  WEFT_CHECK(problem.empty(), "a convolution that {} cannot be a layer of weft", problem);
  layer_ = std::make_unique<ConvLayer>(geometry_of(options));
  register_state();
}

torch::Tensor Conv2dImpl::forward(const torch::Tensor& x) {
  const ConvShape& shape = layer_->geometry();
  WEFT_CHECK(x.defined() && x.dim() == 4 && x.size(1) == shape.ins,
             "{}: an input of {} for a convolution {} -> {}: accepted is [images, {}, height, "
             "width]",
             layer_->label(), sizes_text(x), shape.ins, shape.outs, shape.ins);
  layer_->shape_for(sizes_of(x));
  return run(x);
}

torch::Tensor Conv2dImpl::packed_forward(const torch::Tensor& x, const Outputs&) {
  const ConvShape shape = layer_->shape_for(sizes_of(x));
  torch::Tensor y =
      torch::empty({shape.images, shape.outs, shape.out_height(), shape.out_width()}, x.options());
  const float* b = bias.defined() ? bias.data_ptr<float>() : nullptr;
  with_type_of(x, [&]<typename T>(T) {
    layer_->forward<T>(weight.data_ptr<float>(), images_of<T>(x), b, images_of<T>(y));
  });
  return y;
}

torch::Tensor Conv2dImpl::packed_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                               const Outputs&) {
  torch::Tensor dx = torch::empty(x.sizes(), g.options());
  with_type_of(g, [&]<typename T>(T) {
    layer_->backward_data<T>(weight.data_ptr<float>(), images_of<T>(g), images_of<T>(dx));
  });
  return dx;
}

torch::Tensor Conv2dImpl::packed_backward_weight(const torch::Tensor& g, const torch::Tensor& x,
                                                 const Pass& pass, const Outputs&) {
  torch::Tensor dw = torch::empty(weight.sizes(), weight.options());
  with_type_of(g, [&]<typename T>(T) {
    layer_->backward_weight<T>(weight.data_ptr<float>(), images_of<T>(g), images_of<T>(x), pass,
                               dw.data_ptr<float>());
  });
  return dw;
}

torch::Tensor Conv2dImpl::plain_forward(const torch::Tensor& x, const torch::Tensor& w) {
  const ConvShape& s = layer_->geometry();
  return torch::conv2d(x, w, bias.defined() ? bias.detach().to(x.scalar_type()) : torch::Tensor(),
                       {s.stride_h, s.stride_w}, {s.pad_h, s.pad_w}, {s.dilation_h, s.dilation_w},
                       s.groups);
}

namespace {

// {dx, dw}; only the requested one is computed.
torch::Tensor backward_of(const torch::Tensor& g, const torch::Tensor& x, const torch::Tensor& w,
                          const ConvShape& s, bool data) {
  const auto [dx, dw, db] = at::convolution_backward(
      g, x, w, at::OptionalIntArrayRef(), {s.stride_h, s.stride_w}, {s.pad_h, s.pad_w},
      {s.dilation_h, s.dilation_w}, /*transposed=*/false, /*output_padding=*/{0, 0}, s.groups,
      {data, !data, false});
  return data ? dx : dw;
}

}  // namespace

torch::Tensor Conv2dImpl::plain_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                              const torch::Tensor& w) {
  return backward_of(g, x, w, layer_->geometry(), true);
}

torch::Tensor Conv2dImpl::plain_backward_weight(const torch::Tensor& g, const torch::Tensor& x) {
  return backward_of(g, x, weight.detach().to(g.scalar_type()), layer_->geometry(), false);
}

torch::Tensor Conv2dImpl::bias_gradient(const torch::Tensor& g) const {
  return widened(g).sum({0, 2, 3}).to(weight.scalar_type());
}

torch::Tensor Conv2dImpl::rows_of(const torch::Tensor& x) const {
  const ConvShape& s = layer_->geometry();
  WEFT_CHECK(s.groups == 1, "{}: its groups of channels have different inputs", layer_->label());
  // [images, columns, positions]
  const torch::Tensor columns =
      at::im2col(x.detach(), {s.kernel_h, s.kernel_w}, {s.dilation_h, s.dilation_w},
                 {s.pad_h, s.pad_w}, {s.stride_h, s.stride_w});
  return columns.transpose(1, 2).reshape({-1, columns.size(1)}).contiguous();
}

int64_t Conv2dImpl::tokens_of(const torch::Tensor& x) const {
  return x.size(0) * layer_->shape_for(sizes_of(x)).positions();
}

torch::Tensor Conv2dImpl::sample_scales_of(const torch::Tensor& g,
                                           const SampleOptions& options) const {
  // A sample sees images, outputs and positions: a kernel of one tap has them as they are.
  ConvShape shape;
  shape.images = g.size(0);
  shape.ins = shape.outs = g.size(1);
  shape.groups = layer_->geometry().groups;
  shape.height = g.size(2);
  shape.width = g.size(3);
  torch::Tensor scales = torch::empty_like(g);
  sample_conv_scales(g.data_ptr<float>(), shape, options, scales.data_ptr<float>());
  return scales;
}

}  // namespace weft
