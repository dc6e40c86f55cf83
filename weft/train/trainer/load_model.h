// The model that a run has left, for evaluation.
#pragma once

#include <filesystem>

#include "weft/train/trainer/trainer.h"

namespace weft {

// The parts of a finished run, the model with the weights of model.safetensors in it. Layers that
// the file promises to be sparse are: their products run by the plan of the run. `data`: instead of
// the data of the run, if not empty. Throws Error that names what is missing or does not fit.
RunParts load_model(const std::filesystem::path& folder, const std::string& data = "");

}  // namespace weft
