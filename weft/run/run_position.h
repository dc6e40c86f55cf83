// Where a run stands between two steps: the entry "weft.checkpoint" in the metadata of its
// checkpoints. The tensors beside it are the model's and the optimiser's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

#include "weft/checkpoint/header.h"
#include "weft/core/json.h"

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

struct SavedPosition {
  RunPosition position;
  Json optimizer_steps;  // steps by parameter, an object
};

Metadata to_metadata(const SavedPosition& saved);
// Throws Error that begins with `file` if there is no such entry, it is of another version, or
// malformed.
SavedPosition position_from(const Metadata& metadata, const std::string& file);

}  // namespace weft
