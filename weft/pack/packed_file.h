// Packed weights in files: safetensors that any reader can open, in one of two formats.
//
//   weft                <name>.weft_values   F32, BF16 or F16 [blocks, groups, keep, 16]
//                       <name>.weft_indices  U8 [blocks, groups, keep, 2 * index_bits]
//                       and an entry in the metadata, weft.packed (packed_entries.h)
//   sparse-24-bitmask   <name>.shape, .compressed, .bitmask (bitmask24.h)
//
// The two tensors of the weft format are the indices and values of a stream pack (packed_matrix.h)
// of the [outs, taps * ins] weights in order of tap, groups restarting with every tap. Every
// group is full: besides the non-zero weights of a group, zeros are kept until it has `keep`,
// negative ones first, then from the left. A weight that is stored [ins, outs] is packed as
// [outs, ins], and its entry says so. So the sizes of all tensors are known before a weight is
// read, and what is packed and unpacked again is what it was, bit for bit, but for negative zeros
// that find no place: they come back as +0.
//
// Memory: one tensor, in all its forms.
#pragma once

#include <variant>

#include "weft/checkpoint/stored_weight.h"
#include "weft/core/mask.h"
#include "weft/pack/bitmask24.h"
#include "weft/pack/packed_entries.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

enum class PackedFormat { kNone, kWeft, kBitmask24 };

// weft if some file has weft.packed; sparse-24-bitmask if some tensor has its three parts.
PackedFormat packed_format(const Checkpoint& checkpoint);
// Throws Error that says to unpack it first.
void require_unpacked(const Checkpoint& checkpoint);

// A tensor as it was before it was packed: its name, type and shape, and what it is made of.
struct LogicalTensor {
  struct Weft {
    PackedEntry entry;
    ShardedTensor values, indices;
  };
  struct TwoOfFour {
    ShardedTensor compressed, bitmask;
  };

  TensorInfo info;  // offsets: 0 and its bytes
  size_t shard = 0;
  std::variant<ShardedTensor, Weft, TwoOfFour> source;  // ShardedTensor: not packed
  uint64_t stored_bytes = 0;

  bool packed() const { return source.index() != 0; }
  std::optional<Pattern> pattern() const;  // of a packed one
  bool transposed() const;                 // packed from a weight that is stored [ins, outs]
};

class PackedCheckpoint {
 public:
  // Checks every name, type and shape; reads no weights, only the shapes of sparse-24-bitmask.
  // Throws Error that names the file, the tensor and the problem. The checkpoint must outlive this
  // object. Also takes one without packed tensors.
  explicit PackedCheckpoint(const Checkpoint& checkpoint);

  PackedFormat format() const { return format_; }
  const std::vector<LogicalTensor>& tensors() const { return tensors_; }  // shard by shard

  // The bytes of a packed tensor before it was packed. Every index is checked.
  std::vector<std::byte> dense(const LogicalTensor& tensor) const;
  // As for_each_band of stored_weight.h, but a packed tensor comes whole, in one band.
  void for_each_band(const LogicalTensor& tensor, bool transposed, int64_t multiple,
                     const std::function<void(const Band&)>& body) const;
  // A tensor of the weft format in memory, for products, [outs, ins] whichever way the weight was
  // stored: fp32, or bf16 if it is stored so.
  PackedMatrix matrix(const LogicalTensor& tensor) const;

  // The file of the tensor, for messages.
  std::string file_of(const LogicalTensor& tensor) const;

  // The layout of the checkpoint without packed tensors.
  CheckpointLayout unpacked_layout() const;

 private:
  void find_weft_tensors();
  void find_bitmask24_tensors();
  void add_plain_tensors();
  std::string name_of(const LogicalTensor& tensor) const;  // file and tensor, for messages

  const Checkpoint& checkpoint_;
  PackedFormat format_;
  std::vector<LogicalTensor> tensors_;
};

struct PackChoice {
  Pattern pattern;
  Dtype values = Dtype::kF32;  // weft format: the type of the stored values
  bool transposed = false;     // the tensor is stored [ins, outs]
};

// The stored types that a tensor can have: its own, and F32; for F32 also BF16, rounded.
bool can_store(Dtype weights, Dtype values);

// Why a selected tensor cannot be packed in this format, or nothing.
std::optional<PackObstacle> packing_obstacle(const StoredWeight& weight, PackedFormat format);

// Of the tensors that are stored for one. tensor: as it is stored.
uint64_t packed_bytes(const TensorInfo& tensor, const PackChoice& choice, PackedFormat format);

// The layout of a checkpoint with these tensors packed. `pruned`: promises for tensors that are
// made sparse on the way; without one for any of its tensors, a file keeps its weft.sparsity as it
// is. Throws Error if a name is taken, or if the checkpoint is packed already.
CheckpointLayout packed_layout(const Checkpoint& checkpoint,
                               const std::map<std::string, PackChoice>& chosen, PackedFormat format,
                               const Sparsity& pruned = {});

// More non-zero weights in a group than the pattern allows.
class NotSparseError : public Error {
 public:
  using Error::Error;
};

// The mask that a tensor is packed with: its non-zero weights, and zeros until every group is full.
// Throws NotSparseError that names the first weight too many.
struct MaskToPack {
  Mask mask;                       // [outs, cols()], in the order of the tensor
  int64_t negative_zeros_out = 0;  // outside the mask: they will come back as +0
};
// tensor: as it is stored; bytes: all its elements, [outs, ins] (read_weight).
MaskToPack mask_to_pack(const TensorInfo& tensor, std::span<const std::byte> bytes,
                        const Pattern& pattern, bool transposed = false);

// The tensors that are stored for one, and their bytes.
struct StoredPart {
  std::string name;
  std::vector<std::byte> bytes;
};
// tensor: of a transposed weight with the shape [outs, ins] (StoredWeight::info). mask: as
// mask_to_pack finds it, or any other that is full.
std::vector<StoredPart> pack_tensor(const TensorInfo& tensor, std::span<const std::byte> bytes,
                                    const Mask& mask, const PackChoice& choice,
                                    PackedFormat format);

}  // namespace weft
