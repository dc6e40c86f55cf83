// The state of a run between two steps, as a file: parameters and buffers of the model (the state
// of the recipes is in them), the state of the optimiser, of torch's random numbers, and where the
// run stands in its data and metrics.
#pragma once

#include <torch/optim/optimizer.h>

#include <filesystem>
#include <set>
#include <string>

#include "weft/train/models/model.h"

namespace weft {

struct RunPosition {
  std::string run;  // which run it belongs to
  int64_t step = 0;
  int64_t data_position = 0;
  uint64_t metrics_bytes = 0;
  double flips = 0.0;  // summed over the steps so far
  double train_seconds = 0.0;
  std::set<std::string> products;  // that ran sparse so far
};

void save_run_checkpoint(const std::filesystem::path& path, Model& model,
                         torch::optim::Optimizer& optimizer, const RunPosition& position);

// Throws Error that names the file if it is damaged, of another run or of a newer weft. Then the
// model and the optimiser may hold part of it: load another, or start anew.
RunPosition load_run_checkpoint(const std::filesystem::path& path, const std::string& run,
                                Model& model, torch::optim::Optimizer& optimizer);

}  // namespace weft
