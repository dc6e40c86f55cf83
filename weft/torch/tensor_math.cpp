#include "weft/torch/tensor_math.h"

#include "weft/core/error.h"
#include "weft/core/masked_copy.h"
#include "weft/core/text.h"

namespace weft {

std::string sizes_text(const torch::Tensor& t) {
  return t.defined() ? shape_text(t.sizes().vec()) : "undefined";
}

void throw_first_line(const std::string& what, const c10::Error& error) {
  const std::string all = error.what_without_backtrace();
  throw Error(fmt::format("{}: libtorch: {}", what, all.substr(0, all.find('\n'))));
}

torch::Tensor mask_tensor(const Mask& mask, const torch::Tensor& like) {
  torch::Tensor ones = torch::ones({mask.rows(), mask.cols()}, torch::kFloat);
  masked_copy(ones.data_ptr<float>(), mask, ones.data_ptr<float>());
  return ones.to(like.device(), like.scalar_type()).reshape(like.sizes());
}

torch::Tensor widened(const torch::Tensor& x) {
  return x.scalar_type() == torch::kBFloat16 ? x.to(torch::kFloat) : x;
}

torch::Tensor for_arithmetic(const torch::Tensor& x) {
  return x.device().is_cpu() ? widened(x) : x;
}

torch::Tensor rounded_to_fp8(const torch::Tensor& x, Fp8 format) {
  const torch::Tensor host = x.detach().to(torch::kCPU, torch::kFloat).contiguous();
  torch::Tensor rounded = torch::empty_like(host);
  const auto size = static_cast<size_t>(host.numel());
  round_to_fp8({host.data_ptr<float>(), size}, format, {rounded.data_ptr<float>(), size});
  return rounded.to(x.device(), x.scalar_type());
}

}  // namespace weft
