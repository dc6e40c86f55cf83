#include "weft/torch/attention.h"

#include <torch/autograd.h>

#include <cmath>
#include <limits>

#include "weft/core/error.h"
#include "weft/kernel/attention/attention.h"
#include "weft/torch/tensor_math.h"

namespace weft {
namespace {

AttentionShape attention_shape(const torch::Tensor& qkv, int64_t heads, bool causal) {
  return {qkv.size(0), qkv.size(1), heads, qkv.size(2) / 3, causal};
}

// The formula on top of attention.h, and nothing else.
class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor qkv,
                               int64_t heads, bool causal) {
    const AttentionShape shape = attention_shape(qkv, heads, causal);
    const torch::Tensor wide = widened(qkv);
    torch::Tensor out = torch::empty({shape.batch, shape.tokens, shape.width}, wide.options());
    torch::Tensor stats = torch::empty({2, shape.batch, heads, shape.tokens}, wide.options());
    attention_forward(shape, wide.data_ptr<float>(), out.data_ptr<float>(),
                      stats.data_ptr<float>());
    context->save_for_backward({qkv, stats});
    context->saved_data["heads"] = heads;
    context->saved_data["causal"] = causal;
    return out.to(qkv.scalar_type());
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    WEFT_CHECK(
        !torch::GradMode::is_enabled(),
        "second derivatives of attention are not defined on the kernels: call backward() without "
        "create_graph, or use double");
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const torch::Tensor qkv = widened(saved[0]);
    const torch::Tensor& stats = saved[1];
    const torch::Tensor g = widened(gradients[0]).contiguous();
    torch::Tensor d_qkv = torch::empty_like(qkv);
    attention_backward(attention_shape(qkv, context->saved_data["heads"].toInt(),
                                       context->saved_data["causal"].toBool()),
                       qkv.data_ptr<float>(), stats.data_ptr<float>(), g.data_ptr<float>(),
                       d_qkv.data_ptr<float>());
    return {d_qkv.to(saved[0].scalar_type()), torch::Tensor(), torch::Tensor()};
  }
};

torch::Tensor plain_attention(const torch::Tensor& qkv, int64_t heads, bool causal) {
  const AttentionShape shape = attention_shape(qkv, heads, causal);
  const torch::Tensor parts =  // each [batch, heads, tokens, head_width]
      qkv.reshape({shape.batch, shape.tokens, 3, heads, shape.head_width()})
          .permute({2, 0, 3, 1, 4});
  torch::Tensor scores = torch::matmul(parts[0], parts[1].transpose(2, 3)) /
                         std::sqrt(static_cast<double>(shape.head_width()));
  if (causal) {
    const torch::Tensor later =
        torch::ones({shape.tokens, shape.tokens}, qkv.options().dtype(torch::kBool)).triu(1);
    scores = scores.masked_fill(later, -std::numeric_limits<double>::infinity());
  }
  return torch::matmul(torch::softmax(scores, 3), parts[2])
      .transpose(1, 2)
      .reshape({shape.batch, shape.tokens, shape.width});
}

}  // namespace

torch::Tensor attention(const torch::Tensor& qkv, int64_t heads, bool causal) {
  WEFT_CHECK(qkv.defined() && qkv.dim() == 3 && qkv.is_floating_point(),
             "attention: qkv is {}, accepted is a floating-point tensor of [batch, tokens, 3 · "
             "width]",
             qkv.defined() ? fmt::format("{} {}", c10::toString(qkv.scalar_type()), sizes_text(qkv))
                           : "undefined");
  WEFT_CHECK(heads >= 1 && qkv.size(2) > 0 && qkv.size(2) % (3 * heads) == 0,
             "attention: rows of {} for {} heads: accepted is a multiple of 3 · heads", qkv.size(2),
             heads);
  const bool on_kernels = qkv.device().is_cpu() && (qkv.scalar_type() == torch::kFloat ||
                                                    qkv.scalar_type() == torch::kBFloat16);
  if (!on_kernels) {
    return weft_errors("attention", [&] { return plain_attention(qkv, heads, causal); });
  }
  return AttentionFunction::apply(qkv.contiguous(), heads, causal);
}

}  // namespace weft
