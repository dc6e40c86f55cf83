#include "weft/distributed/same_state.h"

#include <fmt/format.h>

#include <span>
#include <string>
#include <vector>

#include "weft/data/checksum.h"
#include "weft/torch/layer_module.h"

namespace weft {
namespace {

struct Checked {
  std::string what;  // "the mask, permutation or scale of 'hidden0'"
  uint32_t sum = 0;
};

uint32_t sum_of(const torch::Tensor& tensor) {
  const torch::Tensor whole = tensor.detach().contiguous();
  return checksum(0, {static_cast<const std::byte*>(whole.data_ptr()),
                      static_cast<size_t>(whole.numel() * whole.element_size())});
}

// Masks first: weights that differ have masks that differ, too, and the mask is the better news.
std::vector<Checked> checked_parts(torch::nn::Module& model) {
  std::vector<Checked> parts;
  for (const auto& [name, layer] : layers_of(model)) {
    if (layer->always_dense()) continue;
    uint32_t sum = 0;
    for (const torch::Tensor& buffer : layer->buffers(/*recurse=*/false)) {
      sum = sum * 31 + sum_of(buffer);
    }
    parts.push_back({fmt::format("the mask, permutation or scale of '{}'", name), sum});
  }
  for (const auto& parameter : model.named_parameters()) {
    parts.push_back(
        {fmt::format("the parameter '{}'", parameter.key()), sum_of(parameter.value())});
  }
  for (const auto& buffer : model.named_buffers()) {
    parts.push_back({fmt::format("the buffer '{}'", buffer.key()), sum_of(buffer.value())});
  }
  return parts;
}

}  // namespace

void require_same_state(torch::nn::Module& model, ProcessGroup& ranks, int64_t step) {
  const std::vector<Checked> own = checked_parts(model);
  const auto count = static_cast<int64_t>(own.size());
  torch::Tensor all = torch::zeros({ranks.size(), count}, torch::kLong);
  auto found = all.accessor<int64_t, 2>();
  for (int64_t i = 0; i < count; ++i) found[ranks.rank()][i] = own[static_cast<size_t>(i)].sum;
  ranks.sum(all);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t rank = 1; rank < ranks.size(); ++rank) {
      if (found[rank][i] == found[0][i]) continue;
      throw Error(
          fmt::format("{} on rank {} differs from that on rank 0 after step {}: a host may have a "
                      "fault, or the "
                      "model depends on more than its weights and the seed",
                      own[static_cast<size_t>(i)].what, rank, step));
    }
  }
}

}  // namespace weft
