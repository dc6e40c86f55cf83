#include "weft/torch/linear.h"

#include "weft/torch/tensor_math.h"

namespace weft {
namespace {

// All but the last dimension are tokens.
template <typename T>
MatrixView<T> matrix_of(const torch::Tensor& t) {
  const int64_t cols = t.size(-1);
  return {data_of<T>(t), cols == 0 ? 0 : t.numel() / cols, cols};
}
MatrixView<float> matrix(const torch::Tensor& t) { return matrix_of<float>(t); }

std::vector<int64_t> with_last(const torch::Tensor& t, int64_t last) {
  std::vector<int64_t> sizes = t.sizes().vec();
  sizes.back() = last;
  return sizes;
}

}  // namespace

LinearImpl::LinearImpl(const torch::nn::LinearOptions& options) : LayerModule("weft::Linear") {
  WEFT_CHECK(options.in_features() >= 1 && options.out_features() >= 1,
             "a linear layer of {} inputs and {} outputs: there must be at least one of each",
             options.in_features(), options.out_features());
  const torch::nn::Linear torchs(options);  // its initialisation
  weight = register_parameter("weight", torchs->weight.detach());
  if (torchs->bias.defined()) bias = register_parameter("bias", torchs->bias.detach());
  layer_ = std::make_unique<LinearLayer>(weight.size(0), weight.size(1));
  register_state();
}

LinearImpl::LinearImpl(torch::Tensor other) : LayerModule("weft::Linear") {
  WEFT_CHECK(other.defined() && other.dim() == 2, "a weight of {} for a linear layer",
             sizes_text(other));
  weight = std::move(other);
  layer_ = std::make_unique<LinearLayer>(weight.size(0), weight.size(1));
  register_state();
}

void LinearImpl::require_features(const torch::Tensor& x) const {
  const WeightShape shape = weight_shape();
  WEFT_CHECK(x.defined() && x.dim() >= 1 && x.size(-1) == shape.ins,
             "{}: an input of {} for a layer {} -> {}: accepted is [..., {}]", layer().label(),
             sizes_text(x), shape.ins, shape.outs, shape.ins);
}

torch::Tensor LinearImpl::forward(const torch::Tensor& x) {
  require_features(x);
  return run(x);
}

torch::Tensor LinearImpl::forward_some(const torch::Tensor& x, const Outputs& some) {
  require_features(x);
  WEFT_CHECK(!bias.defined(), "{}: some outputs of a layer with a bias", layer().label());
  return run(x, some);
}

torch::Tensor LinearImpl::packed_forward(const torch::Tensor& x, const Outputs& some) {
  torch::Tensor y = torch::empty(with_last(x, some.count), x.options());
  const float* b = bias.defined() ? bias.data_ptr<float>() : nullptr;
  with_type_of(x, [&]<typename T>(T) {
    layer_->forward<T>(weight.data_ptr<float>(), matrix_of<T>(x), b, matrix_of<T>(y), some);
  });
  return y;
}

torch::Tensor LinearImpl::packed_backward_data(const torch::Tensor& g, const torch::Tensor&,
                                               const Outputs& some) {
  torch::Tensor dx = torch::empty(with_last(g, weight.size(1)), g.options());
  with_type_of(g, [&]<typename T>(T) {
    layer_->backward_data<T>(weight.data_ptr<float>(), matrix_of<T>(g), matrix_of<T>(dx), some);
  });
  return dx;
}

torch::Tensor LinearImpl::packed_backward_weight(const torch::Tensor& g, const torch::Tensor& x,
                                                 const Pass& pass, const Outputs& some) {
  torch::Tensor dw = torch::empty({some.count, weight.size(1)}, weight.options());
  with_type_of(g, [&]<typename T>(T) {
    layer_->backward_weight<T>(weight.data_ptr<float>(), matrix_of<T>(g), matrix_of<T>(x), pass,
                               matrix(dw), some);
  });
  return dw;
}

torch::Tensor LinearImpl::plain_forward(const torch::Tensor& x, const torch::Tensor& w) {
  const torch::Tensor y = x.matmul(w.t());
  return bias.defined() ? y + bias.detach().to(y.scalar_type()) : y;
}

torch::Tensor LinearImpl::plain_backward_data(const torch::Tensor& g, const torch::Tensor&,
                                              const torch::Tensor& w) {
  return g.matmul(w);
}

torch::Tensor LinearImpl::plain_backward_weight(const torch::Tensor& g, const torch::Tensor& x) {
  return g.reshape({-1, g.size(-1)}).t().matmul(x.reshape({-1, x.size(-1)}));
}

torch::Tensor LinearImpl::bias_gradient(const torch::Tensor& g) const {
  return widened(g).reshape({-1, g.size(-1)}).sum(0).to(weight.scalar_type());
}

torch::Tensor LinearImpl::rows_of(const torch::Tensor& x) const {
  return x.detach().reshape({-1, x.size(-1)}).contiguous();
}

int64_t LinearImpl::tokens_of(const torch::Tensor& x) const { return x.numel() / x.size(-1); }

torch::Tensor LinearImpl::sample_scales_of(const torch::Tensor& g,
                                           const SampleOptions& options) const {
  torch::Tensor scales = torch::empty_like(g);
  sample_scales(matrix(g), options, matrix(scales));
  return scales;
}

}  // namespace weft
