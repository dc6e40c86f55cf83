// The state of a run between two steps, as a file: parameters and buffers of the model (the state
// of the recipes is in them), the state of the optimiser, of torch's random numbers, and where the
// run stands in its data and metrics.
#pragma once

#include <torch/optim/optimizer.h>

#include <filesystem>
#include <string>

#include "weft/run/run_position.h"
#include "weft/torch/model.h"

namespace weft {

void save_run_checkpoint(const std::filesystem::path& path, Model& model,
                         torch::optim::Optimizer& optimizer, const RunPosition& position);

// Throws Error that names the file if it is damaged, of another run or of another version. Then the
// model and the optimiser may hold part of it: load another, or start again.
RunPosition load_run_checkpoint(const std::filesystem::path& path, const std::string& run,
                                Model& model, torch::optim::Optimizer& optimizer);

}  // namespace weft
