// Initial weights of a run, or of any torch module, from a safetensors checkpoint.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weft/checkpoint/sparsity.h"
#include "weft/core/json.h"

namespace weft {

// What remains of the file once its weights are in the model. It is kept in run.json: a run that
// goes on does not look at the file again.
struct InitRecord {
  uint32_t checksum = 0;  // of the weights as the model has them: tells runs apart
  Sparsity sparsity;      // of tensors that are in the file
  // By weight, those that it names (checkpoint/row_order_tensor.h). Not in run.json: the
  // first checkpoint of the run has them.
  std::map<std::string, std::vector<int64_t>> row_orders = {};

  Json to_json() const;
  // Throws Error that begins with `what`, the file that it is from.
  static InitRecord from_json(const Json& record, const std::string& what);
};

// Copies every parameter of the model, and every buffer that does not belong to a recipe, out of
// a checkpoint (single file or sharded). Weights of F16, BF16 and F64 become those of the model;
// other tensors must be of its type. Recipes begin again with these weights, as after sparsify, with a
// line to `note` if there are some.
//
// Throws Error that names the file and the tensor if one is missing, of another shape or type, or
// not finite; then nothing has changed, unless it is a value. Tensors that the model does not have are
// left out, with a line to `note`.
InitRecord load_init(const std::filesystem::path& path, torch::nn::Module& model,
                     const std::function<void(const std::string&)>& note);

}  // namespace weft
