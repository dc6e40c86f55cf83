// pack_checkpoint, unpack_checkpoint: a checkpoint whose N:M weights are stored without their zeros,
// and back.
//
//   PackOptions options;
//   options.in = "sparse.safetensors";
//   options.out = {"packed.safetensors"};
//   const PackReport report = pack_checkpoint(options);
//
// Packed are the tensors that the file promises to be sparse along inputs (weft.sparsity), or with
// options.pattern those that mask_checkpoint would prune; a weight that does not obey is an error,
// unless by_magnitude prunes it on the way. A tensor that would be larger stays as it is, as one of
// few rows (sixteen are stored together), unless any_size is set. All other tensors are copied. F32, F16 and BF16 weights
// come back from unpack_checkpoint bit for bit, unless they were rounded (values) or are negative
// zeros that found no place (packed_file.h has the formats).
//
// Memory: one tensor, in all its forms.
#pragma once

#include <optional>
#include <string_view>
#include <variant>

#include "weft/pack/packed_file.h"
#include "weft/prune/job.h"

namespace weft {

std::string_view packed_format_name(PackedFormat format);  // "weft", "sparse-24-bitmask"

struct PackOptions {
  std::filesystem::path in;  // .safetensors, .index.json, or a folder; not packed
  Destination out;
  std::optional<Pattern> pattern;  // nothing: what the file promises
  // The type of the stored values; nothing: that of the weights. kF32, or kBf16, which rounds F32
  // weights and leaves others as they are. Only of the weft format.
  std::optional<Dtype> values;
  PackedFormat format = PackedFormat::kWeft;
  bool by_magnitude = false;  // keep the largest weights of every group; needs the pattern
  bool any_size = false;      // pack what gets larger by it, too
  NameExpressions names;
};

struct UnpackOptions {
  std::filesystem::path in;  // packed in either format
  Destination out;
};

// Of both: `packed` is what is stored, `dense` what it stands for.
struct PackReport {
  struct Tensor {
    TensorInfo info;  // dense
    bool transposed = false;
    Pattern pattern;
    Dtype values;
    uint64_t packed_bytes = 0;
    int64_t negative_zeros_lost = 0;  // they come back as +0
  };
  struct Skipped {
    TensorInfo info;
    std::variant<LeftAlone, PackObstacle> reason;
    std::optional<Pattern> promised;  // by the file
  };

  PackedFormat format;
  std::vector<Tensor> tensors;   // packed, or unpacked; of pack_checkpoint at least one
  std::vector<Skipped> skipped;  // of pack_checkpoint alone
  size_t all_tensors = 0;        // of the dense checkpoint
  uint64_t dense_bytes = 0, packed_bytes = 0;  // of all of them
  std::filesystem::path out;  // the file itself if the folder was named and has one
  Companions companions;      // that were copied

  int64_t negative_zeros_lost() const;
};
std::string reason_text(const PackReport::Skipped& skipped);  // fit to follow "skipped: "

// Throws OptionError if the pattern is missing; NotSparseError that names file, tensor and the first
// weight too many if a weight does not obey; OverwriteError if the output would replace the input;
// Error that names the file and the problem otherwise.
PackReport pack_checkpoint(const PackOptions& options, const Listener& listener = {});

// Throws Error if the checkpoint is not packed, or malformed.
PackReport unpack_checkpoint(const UnpackOptions& options, const Listener& listener = {});

}  // namespace weft
