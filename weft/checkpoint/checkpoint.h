// Checkpoint: the tensors of a model, in one safetensors file or in shards under an index.
//
//   model.safetensors                              one file
//   model.safetensors.index.json                   {"metadata": {...}, "weight_map": {name: shard}}
//   a folder that holds one of the two             the index goes before the files
//
// A file is an index if its name ends in .index.json; in a folder, only .safetensors.index.json
// counts, since the index of another format may be there too (pytorch_model.bin.index.json).
//
// Nothing is read before it is asked for; read() takes any piece of any tensor, so that a
// checkpoint larger than memory can pass through. Reading is safe from several threads.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "weft/checkpoint/companions.h"
#include "weft/checkpoint/safetensors.h"
#include "weft/checkpoint/sparsity.h"
#include "weft/core/atomic_file.h"
#include "weft/core/same_file.h"

namespace weft {

struct ShardedTensor {
  TensorInfo info;
  size_t shard = 0;
};

// What the files of a checkpoint are to hold: their names, tensors and metadata.
struct ShardLayout {
  std::filesystem::path name;  // of the file, without its folder
  std::vector<TensorInfo> tensors;
  Metadata metadata;
};
struct CheckpointLayout {
  std::vector<ShardLayout> shards;
  std::optional<std::filesystem::path> index;  // its name, if the checkpoint is sharded
  std::string index_metadata;                  // its "metadata" object, as JSON
  uint64_t bytes_before = 0;  // of all tensors; "total_size" changes by as much as they do

  uint64_t bytes() const;  // of all tensors
};

// Every shard has the promises of its own tensors, and no others.
CheckpointLayout with_sparsity(CheckpointLayout layout, const Sparsity& sparsity);

class Checkpoint {
 public:
  // Throws Error with a line that names the file and the problem.
  static Checkpoint open(const std::filesystem::path& path);

  bool sharded() const { return index_.has_value(); }
  // The folder that was opened; empty if a file was named.
  const std::filesystem::path& folder() const { return folder_; }
  size_t shard_count() const { return shards_.size(); }
  const SafetensorsReader& shard(size_t i) const { return shards_[i]; }

  const std::vector<ShardedTensor>& tensors() const { return tensors_; }  // shard by shard
  uint64_t bytes() const;                                                 // of all tensors

  // The weft.sparsity of all shards, parsed by every call. Throws Error that names the file if it
  // is malformed or of an unknown version. Other programs copy metadata that they do not
  // understand, so it may name tensors that are not there; if shards contradict each other, the
  // first wins.
  Sparsity sparsity() const;

  // The layout of this checkpoint, for one that is written after its model.
  CheckpointLayout layout() const;

  // The files that are read: the index, if any, and the shards.
  std::vector<std::filesystem::path> paths() const;

  void read(const ShardedTensor& tensor, uint64_t offset, std::span<std::byte> out) const;
  // The file of the tensor, for messages.
  std::string file_of(const ShardedTensor& tensor) const;

 private:
  struct Index {
    std::filesystem::path path;
    std::string metadata;  // its "metadata" object, as JSON
  };

  Checkpoint() = default;
  void add_shard(const std::filesystem::path& path);
  void read_index(const std::filesystem::path& path);

  std::filesystem::path folder_;
  std::optional<Index> index_;
  std::vector<SafetensorsReader> shards_;
  std::vector<ShardedTensor> tensors_;
};

// A piece of a tensor: `rows` of its first dimension, from `first_row`.
struct Band {
  int64_t first_row = 0;
  int64_t rows = 0;
  uint64_t offset = 0;  // bytes from the first byte of the tensor
  std::span<std::byte> bytes;
};

// Reads a tensor of two or more dimensions in bands of rows and hands them to `body`, which may
// change the bytes. Every band but the last has a multiple of `multiple` rows; a band is about
// `target_bytes`, or `multiple` rows if those are more. Memory: one band. Weights that may be
// stored transposed are read as stored_weight.h does.
void for_each_band(const Checkpoint& checkpoint, const ShardedTensor& tensor, int64_t multiple,
                   const std::function<void(const Band&)>& body,
                   uint64_t target_bytes = uint64_t{32} << 20);

// The files that a CheckpointWriter makes or replaces: the index, if any, and the shards. Throws
// OverwriteError if one of them is to be kept, and Error if one in a folder of shards is a symbolic
// link: a user who names the folder does not mean the target of the link. Nothing is written.
std::vector<std::filesystem::path> output_files(const std::filesystem::path& target,
                                                const CheckpointLayout& layout,
                                                const std::vector<KeptFiles>& kept = {});

// Writes a checkpoint with the tensors of another one (their values may differ), as one file or
// sharded as that one is; or with the tensors of a layout, whose offsets do not matter. Nothing
// appears under the target names before commit(); if the writer is destroyed before, nothing of it
// stays.
//
// A sharded checkpoint goes into a folder, which is made if need be, or to a name that ends in
// .index.json. One that is there already is replaced as a whole (shard_set.h): whatever happens,
// its index leads to all of the old shards or to all of the new ones.
//
// So a checkpoint may be written over the one that it is made from. That is asked for by not naming
// it among the files to be kept.
class CheckpointWriter {
 public:
  // output_files() is checked first. companions: copied into the folder of the target, which is
  // made if need be; they appear just before the weights, so that a folder without weights is what a
  // killed program can leave, and not weights that nothing describes.
  CheckpointWriter(const std::filesystem::path& target, const CheckpointLayout& layout,
                   const std::vector<KeptFiles>& kept = {}, const Companions& companions = {});
  CheckpointWriter(const std::filesystem::path& target, const Checkpoint& like,
                   const Sparsity& sparsity, const std::vector<KeptFiles>& kept = {},
                   const Companions& companions = {});

  // Of the tensor only its name and shard count.
  void write(const ShardedTensor& tensor, uint64_t offset, std::span<const std::byte> bytes);
  // Copies a tensor as it is, in pieces.
  void copy(const Checkpoint& from, const ShardedTensor& tensor);

  // What output_files() found.
  const std::vector<std::filesystem::path>& targets() const { return targets_; }

  void sync();
  void commit();

 private:
  CheckpointLayout layout_;
  std::vector<std::filesystem::path> targets_;
  // Before the files in it, so that it goes after them, and also when the constructor throws.
  NewFolder folder_;
  std::unique_ptr<CompanionCopies> companions_;
  std::vector<std::unique_ptr<SafetensorsWriter>> shards_;
};

}  // namespace weft
