// compare_structures: how much magnitude each N:M structure would keep of the weights of a
// checkpoint. Every structure keeps half of the weights, so that the rungs compare; the greedy
// solvers and groups cut short by the edge keep a little less.
//
// Memory: about three times the largest tensor.
#pragma once

#include "weft/mask/diversity.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"
#include "weft/prune/job.h"

namespace weft {

struct StructureRung {
  Pattern pattern{2, 4};
  const Solver* solver = nullptr;
  Retained retained;    // of all weights
  Diversity diversity;  // likewise
};

struct StructuresReport {
  std::vector<StructureRung> rungs;  // the most retained first
  Retained unstructured;             // the larger half of each tensor
  size_t tensors = 0;                // that were compared; at least one
  std::vector<SkippedTensor> skipped;
};

// `file`: .safetensors, .index.json, or a folder; not packed. Throws Error that names the file if no
// tensor is selected.
StructuresReport compare_structures(const std::filesystem::path& file, const NameExpressions& names,
                                    const Listener& listener = {});

}  // namespace weft
