#include "weft/torch/bf16_functions.h"

#include <torch/autograd.h>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/torch/tensor_math.h"

namespace weft {
namespace {

void require_first_derivative(const char* what) {
  WEFT_CHECK(!torch::GradMode::is_enabled(),
             "second derivatives of {} are not defined in bf16: call backward() without "
             "create_graph, or use fp32",
             what);
}

// The formulas of bf16_functions.h, and nothing else.
class LayerNormFunction : public torch::autograd::Function<LayerNormFunction> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               torch::Tensor weight, torch::Tensor bias, double eps) {
    const auto [y, mean, rstd] =
        at::native_layer_norm(x.to(torch::kFloat), weight.sizes(), weight, bias, eps);
    context->save_for_backward({x, mean, rstd, weight, bias});
    return y.to(x.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    require_first_derivative("a layer norm");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const torch::Tensor &x = saved[0], &mean = saved[1], &rstd = saved[2], &weight = saved[3];
    const auto [dx, dweight, dbias] = at::native_layer_norm_backward(
        gradients[0].to(torch::kFloat).contiguous(), x.to(torch::kFloat), weight.sizes(), mean,
        rstd, weight, saved[4], {true, true, true});
    return {dx.to(x.scalar_type()), dweight, dbias, torch::Tensor()};
  }
};

class GeluFunction : public torch::autograd::Function<GeluFunction> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x) {
    context->save_for_backward({x});
    return at::gelu(x.to(torch::kFloat)).to(x.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    require_first_derivative("gelu");
    const torch::Tensor x = context->get_saved_variables()[0];
    return {
        at::gelu_backward(gradients[0].to(torch::kFloat), x.to(torch::kFloat)).to(x.scalar_type())};
  }
};

}  // namespace

torch::Tensor layer_norm(torch::nn::LayerNorm& norm, const torch::Tensor& x) {
  const std::vector<int64_t>& shape = norm->options.normalized_shape();
  const auto dims = static_cast<int64_t>(shape.size());
  WEFT_CHECK(x.defined() && x.is_floating_point() && x.dim() >= dims &&
                 x.sizes().slice(static_cast<size_t>(x.dim() - dims)) == shape,
             "layer_norm: an input of {}{} for a norm over {}",
             x.defined() ? fmt::format("{} ", c10::toString(x.scalar_type())) : "", sizes_text(x),
             shape_text(shape));
  if (x.scalar_type() != torch::kBFloat16 || !norm->weight.defined() ||
      norm->weight.scalar_type() != torch::kFloat) {
    return weft_errors("layer_norm", [&] { return norm->forward(x); });
  }
  return LayerNormFunction::apply(x.contiguous(), norm->weight, norm->bias, norm->options.eps());
}

torch::Tensor gelu(const torch::Tensor& x) {
  WEFT_CHECK(x.defined() && x.is_floating_point(),
             "gelu: x is {}, accepted are floating-point numbers",
             x.defined() ? c10::toString(x.scalar_type()) : "undefined");
  return x.scalar_type() == torch::kBFloat16 ? GeluFunction::apply(x) : torch::gelu(x);
}

}  // namespace weft
