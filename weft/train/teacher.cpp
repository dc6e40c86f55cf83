#include "weft/train/teacher.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/nn/functional/loss.h>

#include "weft/core/text.h"
#include "weft/data/checksum.h"
#include "weft/torch/sparsify.h"
#include "weft/torch/tensor_math.h"
#include "weft/train/load_model.h"

namespace weft {

Teacher::Teacher(std::shared_ptr<Model> network, double share, double temperature)
    : network_(std::move(network)), share_(share), temperature_(temperature) {
  WEFT_CHECK(network_ != nullptr, "a teacher needs a network");
  WEFT_CHECK(share >= 0.0 && share <= 1.0 && temperature > 0.0,
             "teacher-share {} and teacher-temperature {}: accepted are 0 to 1, and above 0", share,
             temperature);
  network_->eval();
  for (torch::Tensor& parameter : network_->parameters()) parameter.set_requires_grad(false);
  const auto add = [&](const torch::Tensor& tensor) {
    const torch::Tensor host = tensor.detach().to(torch::kCPU).contiguous();
    checksum_ = weft::checksum(checksum_, {static_cast<const std::byte*>(host.data_ptr()),
                                           static_cast<size_t>(host.nbytes())});
  };
  for (const torch::Tensor& parameter : network_->parameters()) add(parameter);
  for (const torch::Tensor& buffer : network_->buffers()) add(buffer);
}

torch::Tensor Teacher::mixed(const torch::Tensor& loss, const torch::Tensor& scores,
                             const torch::Tensor& inputs) const {
  if (share_ == 0.0) return loss;
  torch::Tensor wanted;
  {
    const torch::NoGradGuard no_grad;
    const torch::Tensor taught = widened(network_->forward(inputs)).flatten(0, -2);
    WEFT_CHECK(taught.sizes() == scores.sizes(), "the teacher has scores of shape {}, not {}",
               shape_text(taught.sizes()), shape_text(scores.sizes()));
    wanted = (taught / temperature_).log_softmax(-1);
  }
  const torch::Tensor divergence = torch::nn::functional::kl_div(
      (scores / temperature_).log_softmax(-1), wanted,
      torch::nn::functional::KLDivFuncOptions().reduction(torch::kBatchMean).log_target(true));
  return (1.0 - share_) * loss + share_ * temperature_ * temperature_ * divergence;
}

std::shared_ptr<const Teacher> load_teacher(const RunOptions& options) {
  if (options.teacher.empty()) return nullptr;
  const std::filesystem::path folder = options.teacher;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const torch::Tensor random = generator.get_state();
  RunParts parts;
  try {
    parts = load_model(folder, options.data);
  } catch (const Error& error) {
    throw Error(fmt::format("the teacher: {}", error.what()));
  }
  generator.set_state(random);
  const bool text = parts.source->shape().channels == 0;
  WEFT_CHECK(!text || parts.options.context >= options.context,
             "the teacher {} reads {} bytes of context, fewer than the {} of this run",
             printable(folder.string(), 4096), parts.options.context, options.context);
  densify(*parts.model);  // its zeros stay; dense products measure nothing
  return std::make_shared<Teacher>(parts.model, options.teacher_share, options.teacher_temperature);
}

}  // namespace weft
