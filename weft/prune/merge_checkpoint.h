// merge_checkpoint: a checkpoint and what fine-tuning changed in, their sum with the pattern
// restored out.
//
//   W' = round(m (W + D))       see merge.h for the mask m, delta.h for D
//
//   MergeOptions options;
//   options.base = "sparse.safetensors";
//   options.delta = "adapter/";
//   options.out = {"merged.safetensors"};
//   const MergeReport report = merge_checkpoint(options);
//
// Weights with a delta get options.pattern, or keep the one that the base promises
// (weft.sparsity). Other tensors with a delta (biases, norms, excluded weights) are sums without a
// pattern, and no longer promised to have one; tensors without a delta are copied.
#pragma once

#include <optional>

#include "weft/prune/job.h"
#include "weft/prune/merge.h"

namespace weft {

struct MergeOptions {
  std::filesystem::path base;   // .safetensors, .index.json, or a folder; not packed
  std::filesystem::path delta;  // likewise, or a folder of PEFT
  Destination out;
  std::optional<Pattern> pattern;  // nothing: what the base promises
  bool transposable = false;       // with the pattern: along outputs too
  MergeMask mask = MergeMask::kBase;
  std::optional<double> scale;  // of LoRA pairs; nothing: by adapter_config.json, or 1
  NameExpressions names;
  bool dry_run = false;  // report, but write nothing
};

struct MergeReport {
  struct Tensor {
    TensorInfo info;
    Promise promise;                  // what it has now
    std::optional<Delta::Lora> lora;  // nothing: a full delta
    MergeFigures figures;
  };
  // A delta was added, without a pattern.
  struct Added {
    TensorInfo info;
    LeftAlone reason;                           // why it has no pattern
    std::optional<Pattern> no_longer_promised;  // by the base
  };
  // There was no delta.
  struct Unchanged {
    TensorInfo info;
    std::optional<Pattern> promised;  // by the base: it keeps that
    bool selected = false;            // it is a weight that a delta would have been merged into
  };

  std::vector<Tensor> tensors;
  std::vector<Added> added;
  std::vector<Unchanged> unchanged;
  std::optional<std::string> adapter_config;  // the file that gave the scales
  bool scale_assumed = false;                 // no scale of LoRA pairs was given: 1
  std::filesystem::path out;                  // the file itself if the folder was named and has one
  Companions companions;                      // that were copied

  MergeFigures figures() const;  // of all merged tensors
};
// Fit to follow "skipped: ".
std::string reason_text(const MergeReport::Added& added);
std::string reason_text(const MergeReport::Unchanged& unchanged);

// Throws OptionError if the pattern is missing, or a scale is given and there is no LoRA pair;
// OverwriteError if the output would replace one of the inputs; Error that names the file and the
// problem otherwise (match_deltas, merge_tensor).
MergeReport merge_checkpoint(const MergeOptions& options, const Listener& listener = {});

}  // namespace weft
