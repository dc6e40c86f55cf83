// inspect_checkpoint: the tensors of a checkpoint, how dense they are, and the tightest N:M patterns
// that they obey.
//
// Memory: a band of rows; a whole tensor if it is packed.
#pragma once

#include <optional>

#include "weft/core/json.h"
#include "weft/prune/job.h"

namespace weft {

struct InspectedTensor {
  TensorInfo info;                // as it was before it was packed
  bool transposed = false;        // stored [ins, outs]
  std::optional<Pattern> packed;  // the pattern that it is packed by
  uint64_t stored_bytes = 0;
  std::optional<double> density;                   // of types that have a zero
  std::vector<Pattern> patterns_in, patterns_out;  // see tightest_patterns (mask/verify.h)
};

struct InspectReport {
  std::vector<InspectedTensor> tensors;
  Json metadata;  // of one file; of a sharded checkpoint by the names of its shards
  uint64_t bytes = 0;
  size_t shards = 1;
  bool sharded = false;

  size_t packed() const;  // number of packed tensors
};

// `file`: .safetensors, .index.json, or a folder; packed or not.
InspectReport inspect_checkpoint(const std::filesystem::path& file, const Listener& listener = {});

}  // namespace weft
