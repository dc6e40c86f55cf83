#include "weft/torch/batch_norm.h"

#include <torch/autograd.h>

#include "weft/torch/batch_share.h"

namespace weft {
namespace {

using Sum = std::function<void(const torch::Tensor&)>;
struct SumHandle : torch::CustomClassHolder {
  explicit SumHandle(Sum sum) : sum(std::move(sum)) {}
  Sum sum;
};

torch::Tensor per_channel(const torch::Tensor& t) { return t.view({1, -1, 1, 1}); }
torch::Tensor channel_sums(const torch::Tensor& x) {
  return x.sum({0, 2, 3}, false, torch::kDouble);
}

// x̂ = (x - mean) · scale, where mean and scale = 1 / sqrt(var + eps) are of all ranks:
//   dx = scale · (g - mean(g) - x̂ · mean(g · x̂))
class Normalised : public torch::autograd::Function<Normalised> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x,
                               torch::Tensor mean, torch::Tensor scale, double count,
                               c10::intrusive_ptr<SumHandle> handle) {
    const torch::Tensor y = (x - per_channel(mean)) * per_channel(scale);
    context->save_for_backward({y, scale});
    context->saved_data["count"] = count;
    context->saved_data["sum"] = c10::IValue::make_capsule(handle);
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const torch::Tensor &y = saved[0], &scale = saved[1], &g = gradients[0];
    const auto handle =
        c10::static_intrusive_pointer_cast<SumHandle>(context->saved_data["sum"].toCapsule());
    const torch::Tensor sums = torch::stack({channel_sums(g), channel_sums(g * y)});
    handle->sum(sums);
    const torch::Tensor means =
        (sums / context->saved_data["count"].toDouble()).to(g.scalar_type());
    const torch::Tensor dx =
        (g - per_channel(means[0]) - y * per_channel(means[1])) * per_channel(scale);
    return {dx, {}, {}, {}, {}};
  }
};

}  // namespace

torch::Tensor batch_norm(torch::nn::BatchNorm2d& norm, const torch::Tensor& x) {
  const BatchShare* share = BatchShare::current();
  if (share == nullptr || !norm->is_training()) return norm->forward(x);
  const torch::Tensor wide = x.to(torch::kFloat);
  torch::Tensor mean, variance;
  const double count = static_cast<double>(x.size(0) / share->samples * share->all) *
                       static_cast<double>(x.size(2) * x.size(3));
  {
    const torch::NoGradGuard no_grad;
    const torch::Tensor sums = torch::stack({channel_sums(wide), channel_sums(wide.square())});
    share->sum(sums);
    mean = sums[0] / count;
    variance = sums[1] / count - mean.square();
    const double momentum = *norm->options.momentum();
    norm->running_mean.mul_(1 - momentum).add_(mean.to(torch::kFloat), momentum);
    norm->running_var.mul_(1 - momentum)
        .add_((variance * (count / (count - 1))).to(torch::kFloat), momentum);
    norm->num_batches_tracked.add_(1);
  }
  const torch::Tensor scale = (variance + norm->options.eps()).rsqrt().to(torch::kFloat);
  const torch::Tensor y = Normalised::apply(wide, mean.to(torch::kFloat), scale, count,
                                            c10::make_intrusive<SumHandle>(share->sum));
  return (y * per_channel(norm->weight) + per_channel(norm->bias)).to(x.scalar_type());
}

}  // namespace weft
