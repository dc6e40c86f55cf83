// The model of a finished run: the weights that its products use, and their declared sparsity.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>

#include "weft/checkpoint/sparsity.h"
#include "weft/torch/model.h"

namespace weft {

// The patterns that the weights of sparse layers have now, by tensor: along both axes for masks
// that are transposable, by their recipe or because a fixed mask was found so.
Sparsity promises_of(Model& model);

// "fc1" has the tensor "fc1.weight"; a model that is a layer itself, "weight".
std::string weight_name(const std::string& layer);
// The other way; nothing if the tensor has another name.
std::optional<std::string> layer_of_weight(const std::string& tensor);

// Parameters and buffers that belong to recipes and not to the model: scores, masks, counters.
std::set<const void*> recipe_tensors(Model& model);

// A safetensors file with the parameters under their names (of sparse layers, the operand of the
// forward product), the buffers that belong to the model and not to a recipe, and the row orders by
// which rows share; `weft check` holds it against its promises.
void export_model(const std::filesystem::path& path, Model& model);

// The same without the zeros; returns whether there was anything to pack.
bool export_packed(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace weft
