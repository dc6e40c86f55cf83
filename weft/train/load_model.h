// The model of a finished run, for evaluation.
#pragma once

#include <filesystem>
#include <functional>

#include "weft/train/trainer.h"

namespace weft {

// The parts of a finished run, the model with the weights of model.safetensors in it. Layers that
// the file promises to be sparse are: their products run by the plan of the run. `data`: instead of
// the data of the run, if not empty. Throws Error that names what is missing or does not fit.
RunParts load_model(const std::filesystem::path& folder, const std::string& data = "");

// The network of a run, with the weights of a checkpoint in place of its own: what a conversion
// made of them. All layers are dense. Throws Error that names what does not fit; `note` hears of
// tensors that the network does not have.
RunParts load_network(const std::filesystem::path& folder, const std::filesystem::path& weights,
                      const std::string& data, const std::function<void(const std::string&)>& note);

}  // namespace weft
