// mask_checkpoint: a checkpoint in, the same checkpoint with its weights pruned to N:M out.
//
//   MaskOptions options;
//   options.in = "model.safetensors";
//   options.out = {"sparse.safetensors"};
//   options.pattern = Pattern(2, 4);
//   const MaskReport report = mask_checkpoint(options);
//
// Pruned weights become zero, kept ones and all other tensors stay bit for bit. The output promises
// the patterns in its metadata (sparsity.h); what is copied keeps the promises that it had. With
// `reorder`, the order of rows is written beside each weight (row_order_tensor.h), in the place of
// one that was there before.
//
// Files appear whole or not at all, the masks before the checkpoint. Memory: see prune_weight.h.
#pragma once

#include <optional>

#include "weft/prune/job.h"
#include "weft/prune/prune_weight.h"

namespace weft {

struct MaskOptions {
  std::filesystem::path in;  // .safetensors, .index.json, or a folder; not packed
  Destination out;
  std::optional<std::filesystem::path>
      masks;  // also write the masks, as U8 tensors of the same names
  Pattern pattern{2, 4};
  const Solver* solver = &default_solver(false);  // a transposable one makes masks for both axes
  bool reorder = false;  // let rows share by an order that retains more; the pattern must share
  NameExpressions names;
};

struct MaskedTensor {
  TensorInfo info;  // as it is stored
  bool transposed = false;
  PruneFigures figures;

  double density() const;  // of positions that the mask keeps; 1 for a tensor without weights
};

struct MaskReport {
  std::vector<MaskedTensor> tensors;  // at least one
  std::vector<SkippedTensor> skipped;
  std::filesystem::path out;  // the file itself if the folder was named and has one
  Companions companions;      // that were copied

  Retained retained() const;    // of all tensors
  Retained unpermuted() const;  // with reorder: without the orders
};

// Throws OptionError if reorder goes with a pattern that does not share, or if `masks` names one of
// the other files; OverwriteError if the output would replace the input; Error that names the file
// and the problem otherwise, as when no tensor is selected.
MaskReport mask_checkpoint(const MaskOptions& options, const Listener& listener = {});

}  // namespace weft
