#include "weft/torch/routed_weight.h"

#include <torch/library.h>

#include "weft/torch/layer_module.h"

namespace weft {
namespace {

// A backend key that torch leaves to others; the autograd key above it sees calls first.
constexpr auto kKey = c10::DispatchKey::PrivateUse3;
constexpr auto kAutogradKey = c10::DispatchKey::AutogradPrivateUse3;

class RoutedWeight : public c10::TensorImpl {
 public:
  RoutedWeight(std::shared_ptr<LayerModule> layer, bool transposed)
      : c10::TensorImpl(c10::DispatchKeySet({kKey, kAutogradKey}), layer->weight.dtype(),
                        layer->weight.device()),
        layer_(std::move(layer)),
        transposed_(transposed) {
    std::vector<int64_t> sizes = layer_->weight.sizes().vec();
    if (transposed) std::swap(sizes[0], sizes[1]);
    set_sizes_contiguous(sizes);
  }

  const std::shared_ptr<LayerModule>& layer() const { return layer_; }
  bool transposed() const { return transposed_; }

 private:
  std::shared_ptr<LayerModule> layer_;
  bool transposed_;
};

const RoutedWeight& routed(const torch::Tensor& w, bool transposed) {
  const auto* weight = dynamic_cast<const RoutedWeight*>(w.unsafeGetTensorImpl());
  WEFT_CHECK(weight != nullptr && weight->transposed() == transposed,
             "the weight of a weft layer can only be used as a weight; densify the model first");
  return *weight;
}

torch::Tensor routed_transpose(const torch::Tensor& w) {
  // To torch it is a view of w, which is a tensor with a version, and so must the view be.
  const c10::InferenceMode with_version(false);
  return torch::Tensor(c10::make_intrusive<RoutedWeight>(routed(w, false).layer(), true));
}

torch::Tensor routed_matmul(const torch::Tensor& x, const torch::Tensor& w) {
  return routed(w, true).layer()->forward(x);
}

// In the dtype of y: of a layer in bf16 that is not the bias's.
torch::Tensor with_bias(const torch::Tensor& y, const torch::Tensor& bias) {
  return (y + bias).to(y.scalar_type());
}

torch::Tensor routed_addmm(const torch::Tensor& bias, const torch::Tensor& x,
                           const torch::Tensor& w, const torch::Scalar& beta,
                           const torch::Scalar& alpha) {
  WEFT_CHECK(beta.toDouble() == 1.0 && alpha.toDouble() == 1.0,
             "a weft layer adds its bias unscaled, not {} of it", beta.toDouble());
  return with_bias(routed_matmul(x, w), bias);
}

torch::Tensor routed_linear(const torch::Tensor& x, const torch::Tensor& w,
                            const c10::optional<torch::Tensor>& bias) {
  const torch::Tensor y = routed(w, false).layer()->forward(x);
  return bias.has_value() && bias->defined() ? with_bias(y, *bias) : y;
}

// Stride, padding and so on are those of the layer, which had them from the same module.
torch::Tensor routed_convolve(const torch::Tensor& x, const torch::Tensor& w,
                              const c10::optional<torch::Tensor>& bias) {
  const torch::Tensor y = routed(w, false).layer()->forward(x);
  return bias.has_value() && bias->defined() ? with_bias(y, bias->reshape({1, -1, 1, 1})) : y;
}
torch::Tensor routed_conv2d(const torch::Tensor& x, const torch::Tensor& w,
                            const c10::optional<torch::Tensor>& bias, at::IntArrayRef,
                            at::IntArrayRef, at::IntArrayRef, int64_t) {
  return routed_convolve(x, w, bias);
}
torch::Tensor routed_conv2d_padding(const torch::Tensor& x, const torch::Tensor& w,
                                    const c10::optional<torch::Tensor>& bias, at::IntArrayRef,
                                    c10::string_view, at::IntArrayRef, int64_t) {
  return routed_convolve(x, w, bias);
}

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) {
  throw Error(
      fmt::format("{} of the weight of a weft layer: only products with it are defined. Use the "
                  "tensor from parameters(), or densify the model first",
                  op.schema().name()));
}

void route(torch::Library& library) {
  library.impl("t", routed_transpose);
  library.impl("matmul", routed_matmul);
  library.impl("mm", routed_matmul);
  library.impl("addmm", routed_addmm);
  library.impl("linear", routed_linear);
  library.impl("conv2d", routed_conv2d);
  library.impl("conv2d.padding", routed_conv2d_padding);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse3, library) { route(library); }
TORCH_LIBRARY_IMPL(aten, PrivateUse3, library) { route(library); }  // under InferenceMode
TORCH_LIBRARY_IMPL(_, PrivateUse3, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse>());
}

}  // namespace

torch::Tensor routed_weight(std::shared_ptr<LayerModule> layer) {
  return torch::Tensor(c10::make_intrusive<RoutedWeight>(std::move(layer), false));
}

}  // namespace weft
