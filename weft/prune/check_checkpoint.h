// check_checkpoint: do the weights of a file obey an N:M pattern, along which axis, and if not,
// where is the first weight too many?
//
//   CheckOptions options;
//   options.file = "sparse.safetensors";
//   const CheckReport report = check_checkpoint(options);
//   if (!report.valid()) ... report.tensors[i].first_violation
//
// A file that promises patterns (weft.sparsity, or packed tensors) is tested on what it promises;
// another one needs options.pattern, and is tested on the tensors that mask_checkpoint would prune.
//
// Memory: a band of rows; a whole tensor if it is packed or has a row order.
#pragma once

#include <optional>

#include "weft/mask/verify.h"
#include "weft/prune/job.h"

namespace weft {

struct CheckOptions {
  std::filesystem::path file;      // .safetensors, .index.json, or a folder; packed or not
  std::optional<Pattern> pattern;  // nothing: what the file promises
  std::optional<Axis> axis;        // nothing: what the file promises, or else kIn
  NameExpressions names;
  bool strict = false;  // groups that the edge of a matrix cuts short count as failures
};

struct CheckedTensor {
  struct Violation {
    Axis axis;                   // kIn or kOut
    std::vector<int64_t> index;  // of the first weight too many, in the file
  };

  TensorInfo info;  // as it was before it was packed
  Promise promise;  // what was tested
  int64_t nonzero = 0;
  std::optional<GroupCount> in, out;  // along the axes that were tested
  std::optional<Violation> first_violation;
  bool obeys = false;

  int64_t short_groups() const;  // along both axes
  double density() const;        // 1 for a tensor without weights
};

struct CheckReport {
  std::vector<CheckedTensor> tensors;  // at least one
  std::vector<SkippedTensor> skipped;

  bool valid() const;                             // all tensors obey
  std::optional<Pattern> common_pattern() const;  // of all tensors, if they have one in common
};

// Throws OptionError if the pattern is missing, Error that names the file if a promised tensor is
// not there or cannot have a pattern, or if no tensor is selected.
CheckReport check_checkpoint(const CheckOptions& options, const Listener& listener = {});

}  // namespace weft
