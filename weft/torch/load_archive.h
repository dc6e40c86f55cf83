// load_archive: what torch::save has written, into a model with layers of weft.
//
//   for (const std::string& layer : load_archive(*model, "dense.pt")) ...   begins its recipe again
//
// The archive may be of the sparsified model; then the states of the recipes come with the weights, as
// with torch::load. Or it is of the model before sparsify, which torch::load refuses ("No such
// serialized submodule"): it has weights only, so recipes begin again, at step 0, with these.
#pragma once

#include <torch/nn/module.h>
#include <torch/serialize/input-archive.h>

#include <filesystem>
#include <string>
#include <vector>

namespace weft {

// Returns the layers that are not dense and begin again. Throws Error in one line if the file cannot be
// read, lacks a tensor of the model, or has one of another shape for a layer of weft; some of the model
// is then loaded.
std::vector<std::string> load_archive(torch::nn::Module& model, const std::filesystem::path& path);
std::vector<std::string> load_archive(torch::nn::Module& model,
                                      torch::serialize::InputArchive& archive);

}  // namespace weft
