// Any bytes as a packed file: either weft::Error, or every tensor comes back dense, with the bytes
// and the pattern that the file promises, and packed again it is the same weights.
#include <vector>

#include "tests/fuzz/target.h"
#include "weft/checkpoint/stored_weight.h"
#include "weft/core/weight_shape.h"
#include "weft/pack/pack.h"
#include "weft/pack/packed_file.h"

namespace weft::fuzz {
namespace {

// A group has at least one value, of at least two bytes for four: what a file unpacks to is bounded
// by what it stores, or a small file could fill the memory.
void require_bounded(const LogicalTensor& tensor) {
  require(tensor.info.bytes() <= tensor.stored_bytes * Pattern::kMaxGroup * 2,
          "a tensor that its bytes cannot stand for");
}

// The elements of a weight as [outs, ins], whichever way the file stores it.
std::vector<std::byte> weights_of(const PackedCheckpoint& packed, const LogicalTensor& tensor) {
  std::vector<std::byte> weights;
  packed.for_each_band(tensor, tensor.transposed(), 1, [&](const Band& band) {
    weights.insert(weights.end(), band.bytes.begin(), band.bytes.end());
  });
  return weights;
}

void pack_again(const PackedCheckpoint& packed, const LogicalTensor& tensor) {
  const Pattern pattern = *tensor.pattern();
  const auto format = packed.format();
  const StoredWeight weight{{tensor.info, tensor.shard}, tensor.transposed()};
  if (packing_obstacle(weight, format)) return;
  const std::vector<std::byte> bytes = weights_of(packed, tensor);
  const MaskToPack mask = mask_to_pack(tensor.info, bytes, pattern, weight.transposed);
  const PackChoice choice{pattern, tensor.info.dtype, weight.transposed};
  uint64_t stored = 0;
  for (const StoredPart& part : pack_tensor(weight.info(), bytes, mask.mask, choice, format)) {
    stored += part.bytes.size();
  }
  require(stored > 0 || bytes.empty(), "nothing is stored for weights");
}

void read_every_tensor(const PackedCheckpoint& packed) {
  for (const LogicalTensor& tensor : packed.tensors()) {
    require_bounded(tensor);
    error_or_success([&] {
      const std::vector<std::byte> bytes = packed.dense(tensor);
      require(bytes.size() == tensor.info.bytes(), "the bytes are not those of the shape");
      if (tensor.packed()) pack_again(packed, tensor);
    });
    if (!std::holds_alternative<LogicalTensor::Weft>(tensor.source)) continue;
    error_or_success([&] {
      const PackedMatrix matrix = packed.matrix(tensor);
      const PackedMatrix again = PackedMatrix::from_bytes(matrix.bytes());
      require(std::ranges::equal(again.bytes(), matrix.bytes()), "the pack changed");
    });
  }
}

}  // namespace

void packed(Input input) {
  const MemoryFile file(input);
  error_or_success([&] {
    const Checkpoint checkpoint = Checkpoint::open(file.path());
    const PackedCheckpoint found(checkpoint);
    read_every_tensor(found);
    require(found.unpacked_layout().shards.size() == 1, "shards came from nowhere");
  });
  error_or_success([&] {
    const Metadata metadata = {{std::string(kPackedKey), text_of(input)}};
    packed_entries_from(metadata, "packed");
  });
  error_or_success([&] { unpack(PackedMatrix::from_bytes(std::as_bytes(input))); });
}

}  // namespace weft::fuzz
