#include "weft/checkpoint/row_order_tensor.h"

#include "weft/core/row_order.h"
#include "weft/core/text.h"

namespace weft {

std::string row_order_name(const std::string& weight) {
  constexpr std::string_view kWeight = "weight";
  const bool of_layer = weight == kWeight || weight.ends_with(".weight");
  return of_layer ? weight.substr(0, weight.size() - kWeight.size()) + "row_order"
                  : weight + ".row_order";
}

std::vector<int64_t> read_row_order(const Checkpoint& checkpoint, const Promise& promise,
                                    int64_t outs) {
  if (promise.row_order.empty() || promise.pattern.share() == 1) return {};
  for (const ShardedTensor& tensor : checkpoint.tensors()) {
    const TensorInfo& info = tensor.info;
    if (info.name != promise.row_order) continue;
    const std::string what =
        fmt::format("{}: tensor '{}'", checkpoint.file_of(tensor), printable(info.name));
    WEFT_CHECK(info.dtype == Dtype::kI64 && info.shape == std::vector<int64_t>{outs},
               "{} is {} of shape {}: the row order of {} rows must be I64 of shape [{}]", what,
               dtype_name(info.dtype), shape_text(info.shape), outs, outs);
    std::vector<int64_t> order(static_cast<size_t>(outs));
    checkpoint.read(tensor, 0, std::as_writable_bytes(std::span(order)));
    require_row_order(order, outs, what);
    return order;
  }
  throw Error(fmt::format("{}: weft.sparsity names the row order '{}', which is missing",
                          checkpoint.paths().front().string(), printable(promise.row_order)));
}

}  // namespace weft
