// inspect_checkpoint: the tensors of a checkpoint, how dense they are, and the tightest N:M patterns
// that they obey, and where they are not finite.
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
  int64_t nan = 0, infinite = 0;                   // elements, of F32, F16, BF16 and F64
};

struct InspectReport {
  std::vector<InspectedTensor> tensors;
  Json metadata;  // of one file; of a sharded checkpoint by the names of its shards
  uint64_t bytes = 0;
  size_t shards = 1;
  bool sharded = false;

  size_t packed() const;      // number of packed tensors
  size_t not_finite() const;  // number of tensors with NaN or infinity
};

// `file`: .safetensors, .index.json, or a folder; packed or not.
InspectReport inspect_checkpoint(const std::filesystem::path& file, const Listener& listener = {});

}  // namespace weft
