// checkpoint_diversity: how many masks a pattern admits for the weights of a checkpoint, added up
// over the tensors that mask_checkpoint would prune (mask/diversity.h). Reads no weights.
#pragma once

#include "weft/mask/diversity.h"
#include "weft/prune/job.h"

namespace weft {

struct CheckpointDiversity {
  Diversity total;
  std::vector<SkippedTensor> skipped;
  size_t all_tensors = 0;
};

// Throws Error that names the file if there are no weights.
CheckpointDiversity checkpoint_diversity(const std::filesystem::path& file, const Pattern& pattern,
                                         const NameExpressions& names,
                                         const Listener& listener = {});

}  // namespace weft
