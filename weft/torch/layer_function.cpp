#include "weft/torch/layer_function.h"

#include <torch/autograd.h>

#include "weft/core/error.h"
#include "weft/torch/batch_share.h"
#include "weft/torch/tensor_math.h"

namespace weft {

// The layer that a backward pass belongs to, kept alive by the graph, and which pass it was.
struct LayerHandle : torch::CustomClassHolder {
  LayerHandle(std::shared_ptr<LayerModule> module, int64_t stamp, const Pass& pass,
              const Outputs& some)
      : module(std::move(module)), stamp(stamp), pass(pass), some(some) {}
  std::shared_ptr<LayerModule> module;
  int64_t stamp;
  Pass pass;
  Outputs some;
};

class LayerFunction : public torch::autograd::Function<LayerFunction> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               torch::Tensor /*weight*/, torch::Tensor /*bias*/,
                               torch::Tensor /*scores*/, c10::intrusive_ptr<LayerHandle> handle) {
    context->save_for_backward({x});
    context->saved_data["layer"] = c10::IValue::make_capsule(handle);
    return handle->module->forward_product(x.contiguous(), handle->some);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    WEFT_CHECK(
        !torch::GradMode::is_enabled(),
        "second derivatives of a weft layer are not defined: call backward() without create_graph");
    const auto handle =
        c10::static_intrusive_pointer_cast<LayerHandle>(context->saved_data["layer"].toCapsule());
    LayerModule& module = *handle->module;
    return weft_errors(module.layer().label(),
                       [&] { return gradients_of(context, *handle, gradients[0]); });
  }

 private:
  static torch::autograd::variable_list gradients_of(torch::autograd::AutogradContext* context,
                                                     const LayerHandle& handle,
                                                     const torch::Tensor& gradient) {
    LayerModule& module = *handle.module;
    const Outputs& some = handle.some;
    WEFT_CHECK(
        handle.stamp == module.layer().stamp(),
        "a backward pass through {} after its weights or masks have changed: run the forward pass "
        "again after every optimiser step",
        module.layer().label());
    module.require_same_weights();
    const torch::Tensor x = context->get_saved_variables()[0].contiguous();
    const torch::Tensor g = gradient.to(x.scalar_type()).contiguous();
    torch::Tensor dx, dw, db, ds;
    if (context->needs_input_grad(0)) dx = module.backward_data_product(g, x, some);
    const bool learns_scores = module.scores.defined() && context->needs_input_grad(3);
    if (context->needs_input_grad(1) || learns_scores) {
      dw = module.backward_weight_product(g, x, handle.pass, some);
    }
    if (module.bias.defined() && context->needs_input_grad(2)) db = module.bias_gradient(g);
    if (learns_scores) ds = module.score_gradient(dw);
    return {dx, dw, db, ds, torch::Tensor()};
  }
};

torch::Tensor apply_layer(const torch::Tensor& x, LayerModule& module, const Outputs& some) {
  Pass pass = module.layer().next_pass();
  if (const BatchShare* share = BatchShare::current()) {
    pass.first_token = share->first * module.tokens_per_sample(x, *share);
  }
  const auto handle = c10::make_intrusive<LayerHandle>(
      std::static_pointer_cast<LayerModule>(module.shared_from_this()), module.layer().stamp(),
      pass, some);
  // An undefined tensor is no argument for torch; an empty one stands for it.
  const torch::Tensor none = torch::empty({0}, x.options());
  return LayerFunction::apply(x, module.weight, module.bias.defined() ? module.bias : none,
                              module.scores.defined() ? module.scores : none, handle);
}

}  // namespace weft
