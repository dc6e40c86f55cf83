#include "weft/pack/packed_file.h"

#include <set>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/core/weight_shape.h"
#include "weft/pack/narrow.h"
#include "weft/pack/pack.h"
#include "weft/pack/packed_parts.h"
#include "weft/pack/sections.h"

namespace weft {
namespace {

using Names = std::map<std::string, const ShardedTensor*>;

Names names_of(const Checkpoint& checkpoint) {
  Names names;
  for (const ShardedTensor& tensor : checkpoint.tensors()) names[tensor.info.name] = &tensor;
  return names;
}

const ShardedTensor* find(const Names& names, const std::string& name) {
  const auto found = names.find(name);
  return found == names.end() ? nullptr : found->second;
}

TensorInfo dense_info(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape) {
  return {name, dtype, shape, 0, tensor_bytes(dtype, shape)};
}

void require_tensor(const std::string& what, const ShardedTensor* found, const TensorInfo& wanted,
                    size_t shard) {
  WEFT_CHECK(found != nullptr && found->shard == shard, "{}: tensor '{}' is missing", what,
             printable(wanted.name));
  WEFT_CHECK(found->info.dtype == wanted.dtype && found->info.shape == wanted.shape,
             "{}: tensor '{}' is {} of shape {}, accepted is {} of shape {}", what,
             printable(wanted.name), dtype_name(found->info.dtype), shape_text(found->info.shape),
             dtype_name(wanted.dtype), shape_text(wanted.shape));
}

std::vector<std::byte> read_all(const Checkpoint& checkpoint, const ShardedTensor& tensor) {
  std::vector<std::byte> bytes(tensor.info.bytes());
  checkpoint.read(tensor, 0, bytes);
  return bytes;
}

}  // namespace

PackHeader packed_header_of(const std::vector<int64_t>& dims, const Pattern& pattern,
                            Precision type) {
  const WeightShape shape = WeightShape::of(dims);
  PackHeader header =
      stream_header(shape.outs, shape.cols(), pattern, type, shape.cols() == 0 ? 0 : shape.ins);
  sections_of(header);  // throws if it overflows
  return header;
}

TensorInfo values_info(const std::string& name, const PackHeader& h, Dtype dtype) {
  const int64_t blocks = h.rows / kStreamRows + (h.rows % kStreamRows != 0);
  return {name + std::string(kValuesEnding),
          dtype,
          {blocks, group_count(h), h.keep, kStreamRows},
          0,
          0};
}

TensorInfo indices_info(const std::string& name, const PackHeader& h) {
  const int64_t blocks = h.rows / kStreamRows + (h.rows % kStreamRows != 0);
  return {name + std::string(kIndicesEnding),
          Dtype::kU8,
          {blocks, group_count(h), h.keep, 2 * h.index_bits},
          0,
          0};
}

std::optional<Pattern> LogicalTensor::pattern() const {
  if (const auto* weft = std::get_if<Weft>(&source)) return weft->entry.pattern;
  if (std::holds_alternative<TwoOfFour>(source)) return Pattern(2, 4);
  return std::nullopt;
}

bool LogicalTensor::transposed() const {
  const auto* weft = std::get_if<Weft>(&source);
  return weft != nullptr && weft->entry.transposed;
}

PackedFormat packed_format(const Checkpoint& checkpoint) {
  for (size_t i = 0; i < checkpoint.shard_count(); ++i) {
    if (checkpoint.shard(i).header().metadata.contains(kPackedKey)) return PackedFormat::kWeft;
  }
  const Names names = names_of(checkpoint);
  for (const auto& [name, tensor] : names) {
    if (!name.ends_with(".bitmask")) continue;
    const std::string prefix = name.substr(0, name.size() - std::string_view("bitmask").size());
    if (names.contains(prefix + "compressed") && names.contains(prefix + "shape")) {
      return PackedFormat::kBitmask24;
    }
  }
  return PackedFormat::kNone;
}

PackedCheckpoint::PackedCheckpoint(const Checkpoint& checkpoint)
    : checkpoint_(checkpoint), format_(packed_format(checkpoint)) {
  switch (format_) {
    case PackedFormat::kNone: break;
    case PackedFormat::kWeft: find_weft_tensors(); break;
    case PackedFormat::kBitmask24: find_bitmask24_tensors(); break;
  }
  add_plain_tensors();
}

void PackedCheckpoint::find_weft_tensors() {
  const Names names = names_of(checkpoint_);
  for (size_t shard = 0; shard < checkpoint_.shard_count(); ++shard) {
    const std::string file = checkpoint_.shard(shard).path().string();
    const PackedEntries entries =
        packed_entries_from(checkpoint_.shard(shard).header().metadata, file);
    for (const auto& [name, entry] : entries) {
      const std::string what =
          fmt::format("{}: {}: tensor '{}'", file, kPackedKey, printable(name));
      WEFT_CHECK(!names.contains(name), "{}: it is packed, but the checkpoint has it unpacked too",
                 what);
      PackHeader header;
      TensorInfo info;
      try {
        header = packed_header_of(entry.dims(), entry.pattern, Precision::kFp32);
        info = dense_info(name, entry.dtype, entry.shape);
      } catch (const Error& error) {
        throw Error(fmt::format("{}: {}", what, error.what()));
      }
      WEFT_CHECK(entry.index_bits == header.index_bits, "{}: index_bits {}, accepted for {} is {}",
                 what, entry.index_bits, entry.pattern.str(), header.index_bits);
      const ShardedTensor* values = find(names, name + std::string(kValuesEnding));
      const ShardedTensor* indices = find(names, name + std::string(kIndicesEnding));
      const Dtype stored = values == nullptr ? entry.dtype : values->info.dtype;
      WEFT_CHECK(can_store(entry.dtype, stored), "{}: values of {} for weights of {}", what,
                 dtype_name(stored), dtype_name(entry.dtype));
      require_tensor(what, values, values_info(name, header, stored), shard);
      require_tensor(what, indices, indices_info(name, header), shard);
      tensors_.push_back({info, shard, LogicalTensor::Weft{entry, *values, *indices},
                          values->info.bytes() + indices->info.bytes()});
    }
  }
}

void PackedCheckpoint::find_bitmask24_tensors() {
  const Names names = names_of(checkpoint_);
  for (const auto& [name, bitmask] : names) {
    if (!name.ends_with(".bitmask")) continue;
    const std::string prefix = name.substr(0, name.size() - std::string_view("bitmask").size());
    const ShardedTensor* compressed = find(names, prefix + "compressed");
    const ShardedTensor* shape = find(names, prefix + "shape");
    if (compressed == nullptr && shape == nullptr) continue;  // something else of that name
    const std::string what = fmt::format("{}: sparse-24-bitmask", checkpoint_.file_of(*bitmask));
    WEFT_CHECK(compressed != nullptr && shape != nullptr, "{}: tensor '{}{}' is missing", what,
               printable(prefix), compressed == nullptr ? "compressed" : "shape");
    const TensorInfo& info = shape->info;
    WEFT_CHECK(info.dtype == Dtype::kI64 && (info.shape == std::vector<int64_t>{2, 1} ||
                                             info.shape == std::vector<int64_t>{2}),
               "{}: tensor '{}' is {} of shape {}, accepted is I64 of shape [2, 1] or [2]", what,
               printable(info.name), dtype_name(info.dtype), shape_text(info.shape));
    int64_t sizes[2] = {};
    checkpoint_.read(*shape, 0, std::as_writable_bytes(std::span(sizes)));
    const std::string weight = prefix + "weight";
    WEFT_CHECK(!names.contains(weight),
               "{}: tensor '{}' is packed, but the file has it unpacked too", what,
               printable(weight));
    const TensorInfo dense{weight, compressed->info.dtype, {sizes[0], sizes[1]}, 0, 0};
    const auto refuse = [&](const std::string& problem) {
      throw Error(fmt::format("{}: tensor '{}' of shape {}: {}", what, printable(weight),
                              shape_text(dense.shape), problem));
    };
    if (sizes[0] < 0 || sizes[1] < 0) refuse("sizes must not be negative");
    if (const auto obstacle = bitmask24_obstacle(dense)) refuse(obstacle_text(*obstacle, dense));
    const std::vector<TensorInfo> wanted = bitmask24_tensors(dense);
    require_tensor(what, compressed, wanted[1], compressed->shard);
    require_tensor(what, bitmask, wanted[2], bitmask->shard);
    tensors_.push_back({dense_info(weight, dense.dtype, dense.shape), compressed->shard,
                        LogicalTensor::TwoOfFour{*compressed, *bitmask},
                        shape->info.bytes() + compressed->info.bytes() + bitmask->info.bytes()});
  }
}

// What is not part of a packed tensor, and all in the order of the file: a packed tensor stands
// where its values do.
void PackedCheckpoint::add_plain_tensors() {
  std::map<std::string, LogicalTensor> by_values;
  std::set<std::string> parts;
  for (LogicalTensor& tensor : tensors_) {
    if (const auto* weft = std::get_if<LogicalTensor::Weft>(&tensor.source)) {
      parts.insert(weft->indices.info.name);
      by_values.emplace(weft->values.info.name, std::move(tensor));
    } else if (const auto* half = std::get_if<LogicalTensor::TwoOfFour>(&tensor.source)) {
      parts.insert(half->bitmask.info.name);
      parts.insert(*bitmask24_prefix(tensor.info.name) + ".shape");
      by_values.emplace(half->compressed.info.name, std::move(tensor));
    }
  }
  tensors_.clear();
  for (const ShardedTensor& tensor : checkpoint_.tensors()) {
    const std::string& name = tensor.info.name;
    const auto packed = by_values.find(name);
    if (packed != by_values.end()) {
      tensors_.push_back(std::move(packed->second));
    } else if (!parts.contains(name)) {
      WEFT_CHECK(format_ != PackedFormat::kWeft ||
                     !(name.ends_with(kValuesEnding) || name.ends_with(kIndicesEnding)),
                 "{}: tensor '{}' belongs to no entry of {}", checkpoint_.file_of(tensor),
                 printable(name), kPackedKey);
      tensors_.push_back({tensor.info, tensor.shard, tensor, tensor.info.bytes()});
    }
  }
}

std::string PackedCheckpoint::file_of(const LogicalTensor& tensor) const {
  return checkpoint_.shard(tensor.shard).path().string();
}

std::string PackedCheckpoint::name_of(const LogicalTensor& tensor) const {
  return fmt::format("{}: tensor '{}'", file_of(tensor), printable(tensor.info.name));
}

PackedMatrix PackedCheckpoint::matrix(const LogicalTensor& tensor) const {
  const auto* weft = std::get_if<LogicalTensor::Weft>(&tensor.source);
  WEFT_CHECK(weft != nullptr, "{}: it is not packed in the weft format", name_of(tensor));
  const Dtype stored = weft->values.info.dtype;
  const Precision type = stored == Dtype::kBf16 ? Precision::kBf16 : Precision::kFp32;
  PackedMatrix packed =
      PackedMatrix::allocate(packed_header_of(weft->entry.dims(), weft->entry.pattern, type), {});
  const PackSections parts = sections_of(packed.header());
  const std::span<std::byte> bytes = packed.mutable_bytes();
  checkpoint_.read(weft->indices, 0,
                   bytes.subspan(parts.indices, parts.indices_end - parts.indices));
  const std::span<std::byte> values = bytes.subspan(parts.values);
  if (stored == Dtype::kF16) {
    const std::vector<std::byte> narrow = read_all(checkpoint_, weft->values);
    widen_weights(stored, narrow,
                  {reinterpret_cast<float*>(values.data()), values.size() / sizeof(float)});
  } else {
    checkpoint_.read(weft->values, 0, values);
  }
  try {
    check_stream_contents(packed);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}", name_of(tensor), error.what()));
  }
  return packed;
}

void PackedCheckpoint::for_each_band(const LogicalTensor& tensor, bool transposed, int64_t multiple,
                                     const std::function<void(const Band&)>& body) const {
  if (const auto* plain = std::get_if<ShardedTensor>(&tensor.source)) {
    weft::for_each_band(checkpoint_, StoredWeight{*plain, transposed}, multiple, body);
  } else if (tensor.info.bytes() > 0) {
    std::vector<std::byte> bytes = dense(tensor);
    const std::vector<int64_t>& dims = tensor.info.shape;
    if (transposed) {
      const size_t unit = bytes.size() / static_cast<size_t>(dims[0] * dims[1]);
      bytes = transposed_elements(bytes, dims[0], dims[1], unit);
    }
    body({0, dims[transposed ? 1 : 0], 0, bytes});
  }
}

std::vector<std::byte> PackedCheckpoint::dense(const LogicalTensor& tensor) const {
  if (const auto* plain = std::get_if<ShardedTensor>(&tensor.source)) {
    return read_all(checkpoint_, *plain);
  }
  if (const auto* half = std::get_if<LogicalTensor::TwoOfFour>(&tensor.source)) {
    const std::vector<std::byte> compressed = read_all(checkpoint_, half->compressed);
    const std::vector<std::byte> bitmask = read_all(checkpoint_, half->bitmask);
    try {
      return from_bitmask24(tensor.info.shape[0], tensor.info.shape[1],
                            static_cast<size_t>(dtype_bits(tensor.info.dtype)) / 8, compressed,
                            bitmask);
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", name_of(tensor), error.what()));
    }
  }
  const PackedEntry& entry = std::get<LogicalTensor::Weft>(tensor.source).entry;
  const WeightShape shape = WeightShape::of(entry.dims());
  std::vector<float> weights;
  {
    const PackedMatrix packed = matrix(tensor);
    weights = unpack(packed).values;
  }
  if (shape.taps != 1) weights = tensor_order(weights, shape);
  std::vector<std::byte> bytes(tensor.info.bytes());
  const auto inexact = narrow_exactly(weights, tensor.info.dtype, bytes);
  WEFT_CHECK(!inexact, "{}: value {} is not one of {}", name_of(tensor),
             weights[static_cast<size_t>(*inexact)], dtype_name(tensor.info.dtype));
  if (entry.transposed && !bytes.empty()) {
    const size_t unit = bytes.size() / static_cast<size_t>(shape.outs * shape.ins);
    return transposed_elements(bytes, shape.outs, shape.ins, unit);
  }
  return bytes;
}

CheckpointLayout PackedCheckpoint::unpacked_layout() const {
  CheckpointLayout layout = checkpoint_.layout();
  for (ShardLayout& shard : layout.shards) {
    shard.tensors.clear();
    shard.metadata.erase(kPackedKey);
  }
  for (const LogicalTensor& tensor : tensors_) {
    layout.shards[tensor.shard].tensors.push_back(tensor.info);
  }
  return layout;
}

void require_unpacked(const Checkpoint& checkpoint) {
  WEFT_CHECK(packed_format(checkpoint) == PackedFormat::kNone,
             "{}: it is packed: unpack it first with `weft unpack`",
             checkpoint.paths().front().string());
}

bool can_store(Dtype weights, Dtype values) {
  if (weights != Dtype::kF32 && weights != Dtype::kF16 && weights != Dtype::kBf16) return false;
  return values == weights || values == Dtype::kF32 ||
         (weights == Dtype::kF32 && values == Dtype::kBf16);
}

}  // namespace weft
