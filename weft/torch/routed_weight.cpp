#include "weft/torch/routed_weight.h"

#include <torch/library.h>

#include <algorithm>

#include "weft/torch/linear.h"

namespace weft {
namespace {

// A backend key that torch leaves to others; the autograd key above it sees calls first.
constexpr auto kKey = c10::DispatchKey::PrivateUse3;
constexpr auto kAutogradKey = c10::DispatchKey::AutogradPrivateUse3;

class RoutedWeight : public c10::TensorImpl {
 public:
  RoutedWeight(std::shared_ptr<LayerModule> layer, const Outputs& rows, bool transposed)
      : c10::TensorImpl(c10::DispatchKeySet({kKey, kAutogradKey}), layer->weight.dtype(),
                        layer->weight.device()),
        layer_(std::move(layer)),
        rows_(rows),
        transposed_(transposed) {
    std::vector<int64_t> sizes = layer_->weight.sizes().vec();
    sizes[0] = rows.count;
    if (transposed) std::swap(sizes[0], sizes[1]);
    set_sizes_contiguous(sizes);
  }

  const std::shared_ptr<LayerModule>& layer() const { return layer_; }
  const Outputs& rows() const { return rows_; }
  bool transposed() const { return transposed_; }
  torch::Tensor product(const torch::Tensor& x) const {
    if (rows_ == layer_->layer().all()) return layer_->forward(x);
    return std::dynamic_pointer_cast<LinearImpl>(layer_)->forward_some(x, rows_);
  }

 private:
  std::shared_ptr<LayerModule> layer_;
  Outputs rows_;  // fewer than all of a linear layer only
  bool transposed_;
};

const RoutedWeight& routed(const torch::Tensor& w, bool transposed) {
  const auto* weight = dynamic_cast<const RoutedWeight*>(w.unsafeGetTensorImpl());
  WEFT_CHECK(weight != nullptr && weight->transposed() == transposed,
             "the weight of a weft layer can only be used as a weight; densify the model first");
  return *weight;
}

// To torch it is a view of another stand-in, which is a tensor with a version, and so must the view be.
torch::Tensor view_of(const RoutedWeight& w, const Outputs& rows, bool transposed) {
  const c10::InferenceMode with_version(false);
  return torch::Tensor(c10::make_intrusive<RoutedWeight>(w.layer(), rows, transposed));
}

torch::Tensor routed_transpose(const torch::Tensor& w) {
  const RoutedWeight& weight = routed(w, false);
  return view_of(weight, weight.rows(), true);
}

// Ends that are left out, beyond the last row or counted from there are as in torch.
torch::Tensor routed_slice(const torch::Tensor& w, int64_t dim, c10::optional<int64_t> start,
                           c10::optional<int64_t> end, int64_t step) {
  const RoutedWeight& weight = routed(w, false);
  const Outputs& rows = weight.rows();
  WEFT_CHECK(
      dim == 0 && step == 1 && std::dynamic_pointer_cast<LinearImpl>(weight.layer()) != nullptr,
      "of the weight of a weft layer only rows of a linear one can be sliced; densify the "
      "model first");
  const auto place = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rows.count : at, 0, rows.count);
  };
  const int64_t first = place(start.value_or(0));
  const int64_t last = std::max(first, place(end.value_or(rows.count)));
  return view_of(weight, {rows.first + first, last - first}, false);
}

torch::Tensor routed_matmul(const torch::Tensor& x, const torch::Tensor& w) {
  return routed(w, true).product(x);
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
  const torch::Tensor y = routed(w, false).product(x);
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
  library.impl("slice.Tensor", routed_slice);
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
  const Outputs all = layer->layer().all();
  return torch::Tensor(c10::make_intrusive<RoutedWeight>(std::move(layer), all, false));
}

}  // namespace weft
