// Packed tensors into files: which mask, which layout, which bytes.
#include <algorithm>
#include <bit>
#include <set>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/core/weight_shape.h"
#include "weft/mask/verify.h"
#include "weft/pack/narrow.h"
#include "weft/pack/pack.h"
#include "weft/pack/packed_file.h"
#include "weft/pack/packed_parts.h"
#include "weft/pack/sections.h"

namespace weft {
namespace {

Dtype integer_as_wide(Dtype dtype) {
  switch (dtype_bits(dtype)) {
    case 8: return Dtype::kU8;
    case 16: return Dtype::kU16;
    case 32: return Dtype::kU32;
    default: return Dtype::kU64;
  }
}

// Zeros are kept until every group has `keep`, those of `preferred` first, then from the left. Rows
// that share keep the same.
Mask filled(const Mask& nonzero, const Mask& preferred, const Pattern& pattern, int64_t segment) {
  Mask mask(nonzero.rows(), nonzero.cols());
  if (nonzero.cols() == 0) return mask;
  const int64_t group = pattern.group();
  const int64_t block = pattern.share() == 1 ? 1 : pattern.block();
  const int64_t cells = pattern.share() == 1 ? 1 : group;
  // The cell whose first row is `row`, in the block that ends before `end`.
  const auto fill_cell = [&](int64_t row, int64_t end, int64_t col, int width) {
    uint64_t kept = 0, liked = 0;
    for (int64_t r = row; r < end; r += group) {
      kept |= nonzero.bits(r, col, width);
      liked |= preferred.bits(r, col, width);
    }
    const uint64_t all = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
    for (const uint64_t candidates : {liked, all}) {
      for (uint64_t rest = candidates & ~kept; rest != 0 && std::popcount(kept) < pattern.keep();
           rest &= rest - 1) {
        kept |= rest & (~rest + 1);
      }
    }
    for (int64_t r = row; r < end; r += group) mask.put_bits(r, col, width, kept);
  };
  const int64_t item_rows = block * std::max<int64_t>(1, 64 / block);
  parallel_for((mask.rows() + item_rows - 1) / item_rows, [&](int64_t item) {
    for (int64_t row = item * item_rows; row < std::min(mask.rows(), (item + 1) * item_rows);
         ++row) {
      if (row % block >= cells) continue;  // not the first of its cell
      const int64_t end = std::min(mask.rows(), row - row % block + block);
      for (int64_t begin = 0; begin < mask.cols(); begin += segment) {
        for (int64_t col = begin; col < begin + segment; col += group) {
          fill_cell(row, end, col, static_cast<int>(std::min(group, begin + segment - col)));
        }
      }
    }
  });
  return mask;
}

// Bits of `mask` that `other` does not have.
int64_t count_outside(const Mask& mask, const Mask& other) {
  int64_t count = 0;
  for (int64_t r = 0; mask.cols() > 0 && r < mask.rows(); ++r) {
    for (int64_t c = 0; c < mask.cols(); c += 64) {
      const int width = static_cast<int>(std::min<int64_t>(64, mask.cols() - c));
      count += std::popcount(mask.bits(r, c, width) & ~other.bits(r, c, width));
    }
  }
  return count;
}

// The indices of a stream pack, as stored in a file.
std::vector<std::byte> indices_of(const PackedMatrix& packed) {
  const PackSections parts = sections_of(packed.header());
  const auto bytes = packed.bytes().subspan(parts.indices, parts.indices_end - parts.indices);
  return {bytes.begin(), bytes.end()};
}

}  // namespace

std::optional<PackObstacle> packing_obstacle(const StoredWeight& weight, PackedFormat format) {
  const TensorInfo& tensor = weight.tensor.info;
  if (format == PackedFormat::kBitmask24) {
    return weight.transposed ? PackObstacle::kTransposed : bitmask24_obstacle(tensor);
  }
  if (can_store(tensor.dtype, Dtype::kF32)) return std::nullopt;
  return PackObstacle::kDtype;
}

namespace {

PackedEntry entry_of(const TensorInfo& tensor, const PackChoice& choice) {
  PackedEntry entry{choice.pattern, tensor.dtype, tensor.shape, 0, choice.transposed};
  entry.index_bits = packed_header_of(entry.dims(), choice.pattern, Precision::kFp32).index_bits;
  return entry;
}

// What is stored for a tensor: values, and in the end, so that all others are aligned to their
// elements, parts of single bytes.
struct PackedParts {
  std::vector<TensorInfo> values;
  TensorInfo bytes;
};
PackedParts packed_parts(const TensorInfo& tensor, const PackChoice& choice, PackedFormat format) {
  if (format == PackedFormat::kBitmask24) {
    const std::vector<TensorInfo> parts = bitmask24_tensors(tensor);
    return {{parts[0], parts[1]}, parts[2]};
  }
  const PackHeader header =
      packed_header_of(entry_of(tensor, choice).dims(), choice.pattern, Precision::kFp32);
  return {{values_info(tensor.name, header, choice.values)}, indices_info(tensor.name, header)};
}

}  // namespace

uint64_t packed_bytes(const TensorInfo& tensor, const PackChoice& choice, PackedFormat format) {
  const PackedParts parts = packed_parts(tensor, choice, format);
  uint64_t bytes = tensor_bytes(parts.bytes.dtype, parts.bytes.shape);
  for (const TensorInfo& part : parts.values) bytes += tensor_bytes(part.dtype, part.shape);
  return bytes;
}

CheckpointLayout packed_layout(const Checkpoint& checkpoint,
                               const std::map<std::string, PackChoice>& chosen, PackedFormat format,
                               const Sparsity& pruned) {
  require_unpacked(checkpoint);
  CheckpointLayout layout = checkpoint.layout();
  std::set<std::string> names;
  for (size_t i = 0; i < layout.shards.size(); ++i) {
    ShardLayout& shard = layout.shards[i];
    const std::string file = checkpoint.shard(i).path().string();
    PackedEntries entries;
    Sparsity sparsity = Sparsity::from_metadata(shard.metadata, file);
    bool promises = false;
    std::vector<TensorInfo> before, last;
    before.swap(shard.tensors);
    for (const TensorInfo& tensor : before) {
      if (const auto found = pruned.tensors.find(tensor.name); found != pruned.tensors.end()) {
        sparsity.tensors.insert_or_assign(tensor.name, found->second);
        promises = true;
      }
      const auto choice = chosen.find(tensor.name);
      if (choice == chosen.end()) {
        shard.tensors.push_back(tensor);
        continue;
      }
      PackedParts parts = packed_parts(tensor, choice->second, format);
      shard.tensors.insert(shard.tensors.end(), parts.values.begin(), parts.values.end());
      last.push_back(std::move(parts.bytes));
      if (format == PackedFormat::kWeft) {
        entries.emplace(tensor.name, entry_of(tensor, choice->second));
      }
    }
    shard.tensors.insert(shard.tensors.end(), last.begin(), last.end());
    for (const TensorInfo& tensor : shard.tensors) {
      WEFT_CHECK(names.insert(tensor.name).second,
                 "{}: tensor '{}' has the name of a part of a packed tensor", file,
                 printable(tensor.name));
    }
    if (promises) sparsity.store_in(shard.metadata);
    store_packed_entries(entries, shard.metadata);
  }
  return layout;
}

MaskToPack mask_to_pack(const TensorInfo& tensor, std::span<const std::byte> bytes,
                        const Pattern& pattern, bool transposed) {
  const StoredWeight weight{{tensor, 0}, transposed};
  const WeightShape shape = weight.shape();
  const Dtype dtype = weight.tensor.info.dtype;
  const Mask nonzero = nonzero_mask(dtype, bytes, shape.outs, shape.cols());
  const GroupCount count = count_groups_in(nonzero, shape, pattern);
  if (count.first_violation) {
    const WeightPosition& at = *count.first_violation;
    const auto index = weight.index_of(at.out, at.in * shape.taps + at.tap);
    throw NotSparseError(
        fmt::format("weight {} is one more than {} allows", shape_text(index), pattern.str()));
  }
  // As integers, negative zeros are not zero.
  const Mask preferred = nonzero_mask(integer_as_wide(dtype), bytes, shape.outs, shape.cols());
  MaskToPack result;
  if (shape.taps == 1) {
    result.mask = filled(nonzero, preferred, pattern, shape.ins);
  } else {
    result.mask = tensor_order(
        filled(tap_major(nonzero, shape), tap_major(preferred, shape), pattern, shape.ins), shape);
  }
  result.negative_zeros_out = count_outside(preferred, result.mask);
  return result;
}

std::vector<StoredPart> pack_tensor(const TensorInfo& tensor, std::span<const std::byte> bytes,
                                    const Mask& mask, const PackChoice& choice,
                                    PackedFormat format) {
  if (format == PackedFormat::kBitmask24) {
    const std::vector<TensorInfo> parts = bitmask24_tensors(tensor);
    Bitmask24 stored = to_bitmask24(tensor, bytes, mask);
    std::vector<StoredPart> result;
    result.push_back({parts[0].name, std::move(stored.shape)});
    result.push_back({parts[1].name, std::move(stored.compressed)});
    result.push_back({parts[2].name, std::move(stored.bitmask)});
    return result;
  }
  WEFT_CHECK(can_store(tensor.dtype, choice.values), "weights of {} cannot be stored as {}",
             dtype_name(tensor.dtype), dtype_name(choice.values));
  const WeightShape shape = WeightShape::of(tensor.shape);
  const PackHeader expected = packed_header_of(tensor.shape, choice.pattern, Precision::kFp32);
  // Rounded to bf16 where weights are F32. Where they are BF16 or F16 no bit may change, NaNs
  // included, so they are packed as float, which holds both exactly, and narrowed again.
  const bool rounded = tensor.dtype == Dtype::kF32 && choice.values == Dtype::kBf16;
  const Precision type = rounded ? Precision::kBf16 : Precision::kFp32;
  std::vector<float> weights(static_cast<size_t>(tensor.elements()));
  widen_weights(tensor.dtype, bytes, weights);
  PackedMatrix packed;
  if (shape.taps == 1) {
    packed = pack_stream({weights.data(), shape.outs, shape.cols()}, mask, choice.pattern, type);
  } else {
    const TapMajor by_tap = tap_major(weights.data(), mask, shape);
    packed = pack_stream({by_tap.weights.data(), shape.outs, shape.cols()}, by_tap.mask,
                         choice.pattern, type, expected.segment);
  }
  WEFT_CHECK(packed.header().index_bits == expected.index_bits,
             "the mask to pack a tensor with must be full");

  std::vector<StoredPart> result;
  const std::span<const std::byte> values =
      packed.bytes().subspan(sections_of(packed.header()).values);
  result.push_back({tensor.name + std::string(kValuesEnding), {}});
  std::vector<std::byte>& to = result.back().bytes;
  if (rounded || choice.values == Dtype::kF32) {
    to.assign(values.begin(), values.end());
  } else {
    to.resize(values.size() / 2);
    narrow_exactly({reinterpret_cast<const float*>(values.data()), values.size() / sizeof(float)},
                   choice.values, to);
  }
  result.push_back({tensor.name + std::string(kIndicesEnding), indices_of(packed)});
  return result;
}

}  // namespace weft
