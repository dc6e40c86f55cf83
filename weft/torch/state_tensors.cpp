#include "weft/torch/state_tensors.h"

#include <algorithm>

#include "weft/core/error.h"

namespace weft {

torch::Tensor empty_words() { return torch::zeros({0}, torch::kLong); }

torch::Tensor tensor_of(const StateArray& array) {
  torch::Tensor tensor = torch::empty(array.shape, torch::kLong);
  std::copy(array.values.begin(), array.values.end(), tensor.data_ptr<int64_t>());
  return tensor;
}

StateArray array_of(const torch::Tensor& tensor, std::string name, const std::string& context) {
  WEFT_CHECK(tensor.defined() && tensor.scalar_type() == torch::kLong && tensor.device().is_cpu() &&
                 tensor.is_contiguous(),
             "{}: {}: not 64-bit integers on the CPU", context, name);
  const int64_t* first = tensor.data_ptr<int64_t>();
  return {std::move(name), tensor.sizes().vec(), {first, first + tensor.numel()}};
}

}  // namespace weft
