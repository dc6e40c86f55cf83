#include "weft/prune/pack_checkpoint.h"

#include <algorithm>
#include <map>

#include "weft/core/text.h"
#include "weft/prune/elements.h"
#include "weft/prune/prune_weight.h"

namespace weft {
namespace {

bool is_two_of_four(const Pattern& pattern) { return pattern.keep() == 2 && pattern.group() == 4; }

class CheckpointPacker {
 public:
  CheckpointPacker(const PackOptions& options, const Listener& listener)
      : options_(options), listener_(listener), checkpoint_(Checkpoint::open(options.in)) {}

  PackReport pack() {
    require_unpacked(checkpoint_);
    report_.format = options_.format;
    report_.all_tensors = checkpoint_.tensors().size();
    choose();
    const CheckpointLayout layout =
        packed_layout(checkpoint_, chosen_, options_.format, promises_of_pruned());
    const Output output = output_of(options_.out, checkpoint_, "IN", layout);
    report_.out = output.path;
    report_.companions = output.companions;
    report_.dense_bytes = checkpoint_.bytes();
    report_.packed_bytes = layout.bytes();
    CheckpointWriter writer(output.path, layout, output.kept, output.companions);
    ByteProgress progress(listener_, checkpoint_.bytes());
    for (const ShardedTensor& tensor : checkpoint_.tensors()) {
      const auto choice = chosen_.find(tensor.info.name);
      if (choice != chosen_.end()) {
        report_.tensors.push_back(pack(tensor, choice->second, writer));
      } else {
        writer.copy(checkpoint_, tensor);
      }
      progress.add(tensor.info.bytes());
    }
    writer.commit();
    return std::move(report_);
  }

 private:
  void choose() {
    const Sparsity sparsity = checkpoint_.sparsity();
    if (!options_.pattern && sparsity.tensors.empty()) {
      throw OptionError(
          "pattern", fmt::format(" is needed: {} carries no weft.sparsity", options_.in.string()));
    }
    const Selection selection = select_tensors(options_.names, checkpoint_, listener_);
    for (const ShardedTensor& tensor : checkpoint_.tensors()) {
      const TensorInfo& info = tensor.info;
      const auto promised = sparsity.tensors.find(info.name);
      const Promise* promise = promised == sparsity.tensors.end() ? nullptr : &promised->second;
      if (const auto reason = left_alone(selection, promise, info)) {
        skip(info, *reason, promise);
        continue;
      }
      const bool as_promised = !options_.pattern;
      const StoredWeight weight{tensor, as_promised ? selection.is_transposed(info, *promise)
                                                    : selection.is_transposed(info)};
      auto obstacle = as_promised ? obstacle_of_promise(*promise) : std::nullopt;
      if (!obstacle) obstacle = packing_obstacle(weight, options_.format);
      if (!obstacle) {
        const Pattern pattern = as_promised ? promise->without_row_order() : *options_.pattern;
        const PackChoice choice{pattern, stored_type(info.dtype), weight.transposed};
        if (!options_.any_size && grows(info, choice)) obstacle = PackObstacle::kGrows;
        if (!obstacle) chosen_.emplace(info.name, choice);
      }
      if (obstacle) skip(info, *obstacle, promise);
    }
    WEFT_CHECK(!chosen_.empty(), "{}: no tensor to pack: {}", options_.in.string(),
               nothing_chosen());
  }

  // A wider type of the values was asked for, and does not count.
  bool grows(const TensorInfo& info, const PackChoice& choice) const {
    const uint64_t dense = std::max(info.bytes(), tensor_bytes(choice.values, info.shape));
    return packed_bytes(info, choice, options_.format) > dense;
  }

  void skip(const TensorInfo& info, std::variant<LeftAlone, PackObstacle> reason,
            const Promise* promise) {
    report_.skipped.push_back(
        {info, reason, promise != nullptr ? std::optional(promise->pattern) : std::nullopt});
  }

  std::string nothing_chosen() const {
    if (report_.skipped.empty()) return nothing_selected({});
    // Of a tensor that could have been packed, if there is one.
    const auto obstructed = std::ranges::find_if(report_.skipped, [](const auto& one) {
      return std::holds_alternative<PackObstacle>(one.reason);
    });
    const PackReport::Skipped& first =
        obstructed == report_.skipped.end() ? report_.skipped.front() : *obstructed;
    return nothing_selected(first.info.name, reason_text(first));
  }

  std::optional<LeftAlone> left_alone(const Selection& selection, const Promise* promise,
                                      const TensorInfo& info) const {
    if (options_.pattern) return selection.left_alone(info);
    if (promise == nullptr) return LeftAlone::kNotPromised;
    if (const auto reason = selection.left_alone_by_name(info.name)) return reason;
    if (!WeightShape::accepts(info.shape)) return LeftAlone::kDimensions;
    return std::nullopt;
  }

  std::optional<PackObstacle> obstacle_of_promise(const Promise& promise) const {
    if (promise.axis == Axis::kOut) return PackObstacle::kAlongOutputs;
    if (options_.format == PackedFormat::kBitmask24 && !is_two_of_four(promise.pattern)) {
      return PackObstacle::kNotTwoOfFour;
    }
    return std::nullopt;
  }

  Dtype stored_type(Dtype weights) const {
    if (!options_.values) return weights;
    // F16 has two bytes already, and would only lose by it.
    if (options_.values == Dtype::kBf16 && weights != Dtype::kF32) return weights;
    return *options_.values;
  }

  // What is pruned here is promised, as mask_checkpoint would.
  Sparsity promises_of_pruned() const {
    Sparsity sparsity;
    for (const auto& [name, choice] : chosen_) {
      if (!options_.by_magnitude) continue;
      sparsity.tensors.emplace(name, Promise{choice.pattern, Axis::kIn, "", choice.transposed});
    }
    return sparsity;
  }

  PackReport::Tensor pack(const ShardedTensor& tensor, const PackChoice& choice,
                          CheckpointWriter& writer) const {
    const StoredWeight weight{tensor, choice.transposed};
    std::vector<std::byte> bytes = read_weight(checkpoint_, weight);
    PackReport::Tensor row{tensor.info, choice.transposed, choice.pattern, choice.values, 0, 0};
    const Mask mask = mask_of(weight, bytes, row);
    for (const StoredPart& part :
         pack_tensor(weight.info(), bytes, mask, choice, options_.format)) {
      writer.write({{part.name, Dtype::kU8, {}, 0, 0}, tensor.shard}, 0, part.bytes);
      row.packed_bytes += part.bytes.size();
    }
    return row;
  }

  Mask mask_of(const StoredWeight& weight, std::span<std::byte> bytes,
               PackReport::Tensor& row) const {
    if (options_.by_magnitude) {
      PruneFigures figures;
      return find_band_mask({checkpoint_, weight, row.pattern, default_solver(false)},
                            {0, weight.shape().outs, 0, bytes}, figures);
    }
    try {
      MaskToPack found = mask_to_pack(row.info, bytes, row.pattern, weight.transposed);
      row.negative_zeros_lost = found.negative_zeros_out;
      return std::move(found.mask);
    } catch (const NotSparseError& error) {
      throw NotSparseError(
          fmt::format("{}: {}", place_of(checkpoint_, weight.tensor), error.what()));
    }
  }

  const PackOptions& options_;
  const Listener& listener_;
  Checkpoint checkpoint_;
  std::map<std::string, PackChoice> chosen_;
  PackReport report_{};
};

PackReport::Tensor unpacked_row(const LogicalTensor& tensor) {
  const auto* weft = std::get_if<LogicalTensor::Weft>(&tensor.source);
  const Dtype values = weft != nullptr ? weft->values.info.dtype : tensor.info.dtype;
  return {tensor.info, tensor.transposed(), *tensor.pattern(), values, tensor.stored_bytes, 0};
}

}  // namespace

std::string_view packed_format_name(PackedFormat format) {
  switch (format) {
    case PackedFormat::kNone: return "none";
    case PackedFormat::kWeft: return "weft";
    case PackedFormat::kBitmask24: return "sparse-24-bitmask";
  }
  return "";
}

int64_t PackReport::negative_zeros_lost() const {
  int64_t lost = 0;
  for (const Tensor& tensor : tensors) lost += tensor.negative_zeros_lost;
  return lost;
}

std::string reason_text(const PackReport::Skipped& skipped) {
  if (const auto* obstacle = std::get_if<PackObstacle>(&skipped.reason)) {
    return obstacle_text(*obstacle, skipped.info, skipped.promised);
  }
  return reason_text(std::get<LeftAlone>(skipped.reason), skipped.info);
}

PackReport pack_checkpoint(const PackOptions& options, const Listener& listener) {
  const bool bitmask24 = options.format == PackedFormat::kBitmask24;
  WEFT_CHECK(options.format != PackedFormat::kNone,
             "pack_checkpoint: format none: accepted are weft and sparse-24-bitmask");
  WEFT_CHECK(!options.values || (!bitmask24 && (*options.values == Dtype::kF32 ||
                                                *options.values == Dtype::kBf16)),
             "pack_checkpoint: values of type {} in format {}: accepted are F32 and BF16 in weft",
             dtype_name(*options.values), packed_format_name(options.format));
  WEFT_CHECK(!bitmask24 || !options.pattern || is_two_of_four(*options.pattern),
             "pack_checkpoint: format {} is for pattern 2:4, not {}",
             packed_format_name(options.format), options.pattern->str());
  WEFT_CHECK(!options.by_magnitude || options.pattern,
             "pack_checkpoint: by_magnitude needs a pattern");
  return CheckpointPacker(options, listener).pack();
}

PackReport unpack_checkpoint(const UnpackOptions& options, const Listener& listener) {
  const Checkpoint checkpoint = Checkpoint::open(options.in);
  const PackedCheckpoint packed(checkpoint);
  WEFT_CHECK(packed.format() != PackedFormat::kNone,
             "{}: it is not packed: it has neither weft.packed metadata nor tensors of {}",
             options.in.string(), packed_format_name(PackedFormat::kBitmask24));
  const CheckpointLayout layout = packed.unpacked_layout();
  const Output output = output_of(options.out, checkpoint, "IN", layout);
  PackReport report{};
  report.format = packed.format();
  report.all_tensors = packed.tensors().size();
  report.dense_bytes = layout.bytes();
  report.packed_bytes = checkpoint.bytes();
  report.out = output.path;
  report.companions = output.companions;
  CheckpointWriter writer(output.path, layout, output.kept, output.companions);
  ByteProgress progress(listener, layout.bytes());
  for (const LogicalTensor& tensor : packed.tensors()) {
    if (tensor.packed()) {
      writer.write({tensor.info, tensor.shard}, 0, packed.dense(tensor));
      report.tensors.push_back(unpacked_row(tensor));
    } else {
      writer.copy(checkpoint, std::get<ShardedTensor>(tensor.source));
    }
    progress.add(tensor.info.bytes());
  }
  writer.commit();
  return report;
}

}  // namespace weft
