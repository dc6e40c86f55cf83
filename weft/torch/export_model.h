// A trained model as a safetensors file: the weights that its products use, and the patterns that they
// have (`weft.sparsity`), for `weft check`, `weft pack` and other programs.
//
//   sparsify(*model, config); ... train ...
//   export_model("sparse.safetensors", *model);
//
// Any module will do; it keeps training afterwards.
#pragma once

#include <torch/nn/module.h>

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "weft/checkpoint/sparsity.h"
#include "weft/torch/layer_module.h"

namespace weft {

// The patterns that the weights of sparse layers have now, by tensor: along both axes for masks
// that are transposable, by their recipe or because a fixed mask was found so. A layer in its dense
// phase has none, nor one of lbc that still keeps more than N:M.
Sparsity promises_of(torch::nn::Module& model);

// "fc1" has the tensor "fc1.weight", a projection of attention "attention.in_proj_weight"; a model that
// is a layer itself, "weight".
std::string weight_name(const std::string& name, const LayerModule& layer);
// The other way; nothing if the tensor has another name.
std::optional<std::string> layer_of_weight(const std::string& tensor);

// Parameters and buffers that belong to recipes and not to the model: scores, masks, counters.
std::set<const void*> recipe_tensors(torch::nn::Module& model);

// Atomically: the parameters under their names (of sparse layers, the operand of the forward
// product), the buffers that belong to the model and not to a recipe, and the row orders by which
// rows share. Throws Error that names the tensor if its dtype cannot be stored.
void export_model(const std::filesystem::path& path, torch::nn::Module& model);

// The same without the zeros; returns whether there was anything to pack.
bool export_packed(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace weft
