#include "weft/prune/inspect_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "weft/core/error.h"
#include "weft/mask/verify.h"
#include "weft/pack/packed_file.h"
#include "weft/prune/elements.h"

namespace weft {
namespace {

void take_larger(MostPerGroup& most, const MostPerGroup& other) {
  for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], other[i]);
}

// Adds those of one band.
void count_not_finite(Dtype dtype, std::span<const std::byte> bytes, InspectedTensor& found) {
  const auto size = static_cast<int64_t>(dtype_bits(dtype) / 8);
  std::atomic<int64_t> nan{0}, infinite{0};
  for_each_piece(std::ssize(bytes) / size, [&](int64_t first, int64_t count) {
    const auto piece =
        bytes.subspan(static_cast<size_t>(first * size), static_cast<size_t>(count * size));
    with_weights(dtype, piece, [&](auto weights) {
      const auto finite = std::ranges::count_if(weights, [](auto w) { return std::isfinite(w); });
      if (finite == std::ssize(weights)) return;
      const auto nans = std::ranges::count_if(weights, [](auto w) { return std::isnan(w); });
      nan += nans;
      infinite += std::ssize(weights) - finite - nans;
    });
  });
  found.nan += nan;
  found.infinite += infinite;
}

InspectedTensor inspect(const PackedCheckpoint& checkpoint, const LogicalTensor& tensor,
                        bool transposed) {
  const TensorInfo& info = tensor.info;
  InspectedTensor found{info, transposed, tensor.pattern(), tensor.stored_bytes, {}, {}, {}, 0, 0};
  if (!has_zero(info.dtype) || info.bytes() == 0) return found;
  // Anything but a matrix or a convolution counts as one row of elements.
  const bool weights = WeightShape::accepts(info.shape);
  LogicalTensor flat = tensor;
  if (!weights) std::get<ShardedTensor>(flat.source).info.shape = {info.elements()};

  MostPerGroup most_in{}, most_out{};
  int64_t nonzero = 0;
  checkpoint.for_each_band(flat, false, kReportedGroups.back(), [&](const Band& band) {
    WeightShape shape{1, band.rows, 1};
    if (weights) {
      shape = WeightShape::of(info.shape);
      shape.outs = band.rows;
    }
    const Mask mask = nonzero_mask(info.dtype, band.bytes, shape.outs, shape.cols());
    nonzero += mask.count();
    if (is_weight_dtype(info.dtype)) count_not_finite(info.dtype, band.bytes, found);
    if (weights) {
      take_larger(most_in, most_per_group_in(mask, shape));
      take_larger(most_out, most_per_group_out(mask, shape));
    }
  });
  found.density = static_cast<double>(nonzero) / static_cast<double>(info.elements());
  if (weights) {
    found.patterns_in = tightest_patterns(most_in, info.shape[1]);
    found.patterns_out = tightest_patterns(most_out, info.shape[0]);
    if (transposed) std::swap(found.patterns_in, found.patterns_out);
  }
  return found;
}

Json metadata_of(const Checkpoint& checkpoint) {
  if (!checkpoint.sharded()) return checkpoint.shard(0).header().metadata;
  Json by_shard = Json::object();
  for (size_t i = 0; i < checkpoint.shard_count(); ++i) {
    const SafetensorsReader& shard = checkpoint.shard(i);
    by_shard.append(shard.path().filename().string(), shard.header().metadata);
  }
  return by_shard;
}

// Nothing if the weft.sparsity of the file cannot be read: the tensors are shown all the same.
std::optional<Selection> readable_selection(const Checkpoint& checkpoint,
                                            const PackedCheckpoint& logical,
                                            const Listener& listener) {
  std::vector<TensorInfo> infos;
  for (const LogicalTensor& tensor : logical.tensors()) infos.push_back(tensor.info);
  try {
    return select_tensors({}, checkpoint, infos, listener);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

size_t InspectReport::packed() const {
  return static_cast<size_t>(std::ranges::count_if(
      tensors, [](const InspectedTensor& tensor) { return tensor.packed.has_value(); }));
}

size_t InspectReport::not_finite() const {
  return static_cast<size_t>(std::ranges::count_if(
      tensors, [](const InspectedTensor& tensor) { return tensor.nan + tensor.infinite > 0; }));
}

InspectReport inspect_checkpoint(const std::filesystem::path& file, const Listener& listener) {
  const Checkpoint checkpoint = Checkpoint::open(file);
  const PackedCheckpoint logical(checkpoint);
  const auto selection = readable_selection(checkpoint, logical, listener);
  InspectReport report;
  report.metadata = metadata_of(checkpoint);
  report.bytes = checkpoint.bytes();
  report.shards = checkpoint.shard_count();
  report.sharded = checkpoint.sharded();
  ByteProgress progress(listener, checkpoint.bytes());
  for (const LogicalTensor& tensor : logical.tensors()) {
    const bool transposed =
        tensor.transposed() || (selection && selection->is_transposed(tensor.info));
    report.tensors.push_back(inspect(logical, tensor, transposed));
    progress.add(tensor.stored_bytes);
  }
  return report;
}

}  // namespace weft
