// weft pack, weft unpack: a checkpoint whose N:M weights are stored without their zeros, and back.
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/pack/packed_file.h"
#include "weft/prune/tensor_values.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

constexpr const char* kWeft = "weft";
constexpr const char* kBitmask24 = "sparse-24-bitmask";

const char* format_name(PackedFormat format) {
  return format == PackedFormat::kBitmask24 ? kBitmask24 : kWeft;
}

std::string ratio_text(uint64_t stored, uint64_t dense) {
  if (dense == 0) return "-";
  return fmt::format("{:.3f}", static_cast<double>(stored) / static_cast<double>(dense));
}

Json ratio_json(uint64_t stored, uint64_t dense) {
  if (dense == 0) return nullptr;
  return static_cast<double>(stored) / static_cast<double>(dense);
}

// What happened to a tensor, packed or unpacked.
struct Row {
  std::string name;
  std::vector<int64_t> shape;
  bool transposed = false;
  std::string pattern, dtype, values;
  uint64_t dense_bytes = 0;
  uint64_t stored_bytes = 0;
  int64_t negative_zeros = 0;  // that come back as +0
};

void print_rows(const std::vector<Row>& rows) {
  Table table({"tensor", "shape", "dtype", "pattern", "values", ">dense", ">packed", ">ratio"});
  for (const Row& row : rows) {
    table.add({printable(row.name), stored_shape_text(row.shape, row.transposed), row.dtype,
               row.pattern, row.values, bytes_text(row.dense_bytes), bytes_text(row.stored_bytes),
               ratio_text(row.stored_bytes, row.dense_bytes)});
  }
  print(table.str());
}

Json to_json(const std::vector<Row>& rows) {
  Json list = Json::array();
  for (const Row& row : rows) {
    list.push_back({{"name", row.name},
                    {"shape", row.shape},
                    {"transposed", row.transposed},
                    {"dtype", row.dtype},
                    {"pattern", row.pattern},
                    {"values", row.values},
                    {"dense_bytes", row.dense_bytes},
                    {"packed_bytes", row.stored_bytes},
                    {"ratio", ratio_json(row.stored_bytes, row.dense_bytes)},
                    {"negative_zeros_lost", row.negative_zeros}});
  }
  return list;
}

class PackCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("in", in_, "Checkpoint: .safetensors, .index.json, or a folder");
    flags.positional("out", out_, "Where the packed checkpoint goes (a folder if IN is sharded)");
    declare_pattern(flags, pattern_text_);
    flags.text("--values", "fp32|bf16|same", values_,
               "Stored values: bf16 rounds F32 weights (default: same, the type of the weights)",
               one_of({"fp32", "bf16", "same"}));
    flags.text("--format", "weft|sparse-24-bitmask", format_text_,
               "weft, or the format of compressed-tensors for 2:4 (default: weft)",
               one_of({kWeft, kBitmask24}));
    flags.flag("--by-magnitude", by_magnitude_,
               "Prune while packing: keep the largest weights of every group");
    names_.declare(flags);
    in_place_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    format_ = format_text_ == kBitmask24 ? PackedFormat::kBitmask24 : PackedFormat::kWeft;
    refuse_wrong_flags();
    const Checkpoint checkpoint = Checkpoint::open(in_);
    require_unpacked(checkpoint);
    const Sparsity sparsity = checkpoint.sparsity();
    choose(checkpoint, sparsity);

    const CheckpointLayout layout = packed_layout(checkpoint, chosen_, format_, plan_of_pruned());
    CheckpointWriter writer(out_, layout, in_place_.kept(checkpoint, out_, layout));
    Progress progress("packing", checkpoint.bytes());
    for (const ShardedTensor& tensor : checkpoint.tensors()) {
      if (chosen_.contains(tensor.info.name)) {
        pack(checkpoint, tensor, writer);
      } else {
        writer.copy(checkpoint, tensor);
      }
      progress.add(tensor.info.bytes());
    }
    writer.commit();
    progress.finish();
    common_.json ? report_json(checkpoint, layout) : report(checkpoint, layout);
    return 0;
  }

 private:
  void refuse_wrong_flags() const {
    if (by_magnitude_ && pattern_text_.empty()) {
      throw UsageError("--by-magnitude needs --pattern");
    }
    if (format_ != PackedFormat::kBitmask24) return;
    if (!values_.empty() && values_ != "same") {
      throw UsageError(
          fmt::format("--format {} stores values in the type of the weights: --values "
                      "{} is not for it",
                      kBitmask24, values_));
    }
    if (!pattern_text_.empty() && !is_two_of_four(Pattern::parse(pattern_text_))) {
      throw UsageError(
          fmt::format("--format {} is for --pattern 2:4, not {}", kBitmask24, pattern_text_));
    }
  }

  static bool is_two_of_four(const Pattern& pattern) {
    return pattern.keep() == 2 && pattern.group() == 4;
  }

  void choose(const Checkpoint& checkpoint, const Sparsity& sparsity) {
    if (pattern_text_.empty() && sparsity.tensors.empty()) {
      throw UsageError(fmt::format("--pattern is needed: {} carries no weft.sparsity", in_));
    }
    const Selection selection = names_.selection(checkpoint);
    for (const ShardedTensor& tensor : checkpoint.tensors()) {
      const TensorInfo& info = tensor.info;
      if (const auto reason = left_alone(selection, sparsity, info)) {
        skipped_.push_back(skipped(info, *reason));
        continue;
      }
      const auto promised = sparsity.tensors.find(info.name);
      const bool as_promised = pattern_text_.empty();
      const StoredWeight weight{tensor, as_promised
                                            ? selection.is_transposed(info, promised->second)
                                            : selection.is_transposed(info)};
      auto obstacle = as_promised ? obstacle_of_promise(promised->second) : std::nullopt;
      if (!obstacle) obstacle = packing_obstacle(weight, format_);
      if (obstacle) {
        skipped_.push_back({info.name, *obstacle});
      } else {
        const Pattern pattern =
            as_promised ? promised->second.as_rows_lie() : Pattern::parse(pattern_text_);
        chosen_.emplace(info.name, PackChoice{pattern, stored_type(info.dtype), weight.transposed});
      }
    }
    WEFT_CHECK(!chosen_.empty(), "{}: no tensor to pack: {}", in_, nothing_selected(skipped_));
  }

  std::optional<LeftAlone> left_alone(const Selection& selection, const Sparsity& sparsity,
                                      const TensorInfo& info) const {
    if (!pattern_text_.empty()) return selection.left_alone(info);
    if (!sparsity.tensors.contains(info.name)) return LeftAlone::kNotPromised;
    if (const auto reason = selection.left_alone_by_name(info.name)) return reason;
    if (!WeightShape::accepts(info.shape)) return LeftAlone::kDimensions;
    return std::nullopt;
  }

  std::optional<std::string> obstacle_of_promise(const Promise& promise) const {
    if (promise.axis == Axis::kOut) return "sparse along outputs only";
    if (format_ == PackedFormat::kBitmask24 && !is_two_of_four(promise.pattern)) {
      return fmt::format("{} is not 2:4", promise.pattern.str());
    }
    return std::nullopt;
  }

  Dtype stored_type(Dtype weights) const {
    if (format_ == PackedFormat::kBitmask24) return weights;
    if (values_ == "fp32") return Dtype::kF32;
    // F16 has two bytes already, and would only lose by it.
    if (values_ == "bf16" && weights == Dtype::kF32) return Dtype::kBf16;
    return weights;
  }

  // What is pruned here is promised, as `weft mask` would.
  Sparsity plan_of_pruned() const {
    Sparsity sparsity;
    for (const auto& [name, choice] : chosen_) {
      if (!by_magnitude_) continue;
      sparsity.tensors.emplace(name, Promise{choice.pattern, Axis::kIn, "", choice.transposed});
    }
    return sparsity;
  }

  void pack(const Checkpoint& checkpoint, const ShardedTensor& tensor, CheckpointWriter& writer) {
    const TensorInfo& info = tensor.info;
    const PackChoice& choice = chosen_.at(info.name);
    const StoredWeight weight{tensor, choice.transposed};
    const std::vector<std::byte> bytes = read_weight(checkpoint, weight);
    Row row{info.name,
            info.shape,
            choice.transposed,
            choice.pattern.str(),
            std::string(dtype_name(info.dtype)),
            std::string(dtype_name(choice.values)),
            info.bytes(),
            0,
            0};
    const Mask mask = mask_of(checkpoint, weight, bytes, row);
    for (const StoredPart& part : pack_tensor(weight.info(), bytes, mask, choice, format_)) {
      writer.write({{part.name, Dtype::kU8, {}, 0, 0}, tensor.shard}, 0, part.bytes);
      row.stored_bytes += part.bytes.size();
    }
    packed_.push_back(std::move(row));
  }

  Mask mask_of(const Checkpoint& checkpoint, const StoredWeight& weight,
               std::span<const std::byte> bytes, Row& row) const {
    const TensorInfo& info = weight.tensor.info;
    const Pattern& pattern = chosen_.at(info.name).pattern;
    Mask mask;
    if (by_magnitude_) {
      naming_weights(checkpoint, weight, 0, [&] {
        mask = with_weights(info.dtype, bytes, [&](auto weights) {
          return find_mask(default_solver(false), weights.data(), weight.shape(), pattern);
        });
      });
      return mask;
    }
    try {
      MaskToPack found = mask_to_pack(info, bytes, pattern, weight.transposed);
      row.negative_zeros = found.negative_zeros_out;
      return std::move(found.mask);
    } catch (const NotSparseError& error) {
      throw Error(
          fmt::format("{}: tensor '{}': {}: prune it first with `weft mask`, or while packing with "
                      "--by-magnitude",
                      checkpoint.file_of(weight.tensor), printable(info.name), error.what()));
    }
  }

  void report(const Checkpoint& checkpoint, const CheckpointLayout& layout) const {
    print_rows(packed_);
    print_skipped(skipped_);
    int64_t lost = 0;
    for (const Row& row : packed_) lost += row.negative_zeros;
    if (lost > 0) {
      print(fmt::format("\n{} negative zeros outside the kept weights come back as +0\n", lost));
    }
    print(fmt::format("\n{} of {} tensors packed as {}: {} -> {}, ratio {}; written to {}\n",
                      packed_.size(), checkpoint.tensors().size(), format_name(format_),
                      bytes_text(checkpoint.bytes()), bytes_text(layout.bytes()),
                      ratio_text(layout.bytes(), checkpoint.bytes()), out_));
  }

  void report_json(const Checkpoint& checkpoint, const CheckpointLayout& layout) const {
    print_json({{"format", format_name(format_)},
                {"by_magnitude", by_magnitude_},
                {"tensors", to_json(packed_)},
                {"skipped", cli::to_json(skipped_)},
                {"dense_bytes", checkpoint.bytes()},
                {"packed_bytes", layout.bytes()},
                {"ratio", ratio_json(layout.bytes(), checkpoint.bytes())}});
  }

  std::string in_, out_, pattern_text_, values_, format_text_;
  bool by_magnitude_ = false;
  InPlaceFlag in_place_;
  CommonFlags common_;
  NameFilter names_;
  PackedFormat format_ = PackedFormat::kWeft;
  std::map<std::string, PackChoice> chosen_;
  std::vector<Skipped> skipped_;
  std::vector<Row> packed_;
};

class UnpackCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("in", in_, "Packed checkpoint: .safetensors, .index.json, or a folder");
    flags.positional("out", out_, "Where the dense checkpoint goes (a folder if IN is sharded)");
    in_place_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    const Checkpoint checkpoint = Checkpoint::open(in_);
    const PackedCheckpoint packed(checkpoint);
    WEFT_CHECK(packed.format() != PackedFormat::kNone,
               "{}: it is not packed: it has neither weft.packed metadata nor tensors of {}", in_,
               kBitmask24);
    const CheckpointLayout layout = packed.unpacked_layout();
    CheckpointWriter writer(out_, layout, in_place_.kept(checkpoint, out_, layout));
    Progress progress("unpacking", layout.bytes());
    for (const LogicalTensor& tensor : packed.tensors()) {
      if (tensor.packed()) {
        writer.write({tensor.info, tensor.shard}, 0, packed.dense(tensor));
        rows_.push_back(row_of(tensor));
      } else {
        writer.copy(checkpoint, std::get<ShardedTensor>(tensor.source));
      }
      progress.add(tensor.info.bytes());
    }
    writer.commit();
    progress.finish();
    const size_t all = packed.tensors().size();
    if (common_.json) {
      print_json({{"format", format_name(packed.format())},
                  {"tensors", to_json(rows_)},
                  {"copied", all - rows_.size()},
                  {"packed_bytes", checkpoint.bytes()},
                  {"dense_bytes", layout.bytes()}});
      return 0;
    }
    print_rows(rows_);
    print(fmt::format("\n{} of {} tensors unpacked from {}: {} -> {}; written to {}\n",
                      rows_.size(), all, format_name(packed.format()),
                      bytes_text(checkpoint.bytes()), bytes_text(layout.bytes()), out_));
    return 0;
  }

 private:
  static Row row_of(const LogicalTensor& tensor) {
    const auto* weft = std::get_if<LogicalTensor::Weft>(&tensor.source);
    const Dtype values = weft != nullptr ? weft->values.info.dtype : tensor.info.dtype;
    return {tensor.info.name,
            tensor.info.shape,
            tensor.transposed(),
            tensor.pattern()->str(),
            std::string(dtype_name(tensor.info.dtype)),
            std::string(dtype_name(values)),
            tensor.info.bytes(),
            tensor.stored_bytes,
            0};
  }

  std::string in_, out_;
  InPlaceFlag in_place_;
  CommonFlags common_;
  std::vector<Row> rows_;
};

}  // namespace

CommandEntry pack_command() {
  return {
      "pack", "Store N:M weights without their zeros",
      "  weft pack sparse.safetensors packed.safetensors          by the file's weft.sparsity\n"
      "  weft pack sparse.safetensors packed.safetensors --pattern 2:4 --values bf16\n"
      "  weft pack model.safetensors packed.safetensors --pattern 2:4 --by-magnitude\n"
      "  weft pack sparse/ packed/ --pattern 2:4 --format sparse-24-bitmask\n"
      "\n"
      "Takes weights that obey the pattern along inputs; one that does not is an error, unless\n"
      "it is excluded or --by-magnitude prunes it. F32, F16 and BF16 weights are packed, and\n"
      "come back from `weft unpack` bit for bit; other tensors are copied. The file is\n"
      "safetensors: docs/format.md shows how to read it without weft.",
      std::make_unique<PackCommand>()};
}

CommandEntry unpack_command() {
  return {"unpack", "Turn a packed checkpoint back into a dense one",
          "  weft unpack packed.safetensors sparse.safetensors\n"
          "  weft unpack packed/ sparse/\n"
          "\n"
          "Takes what `weft pack` wrote, and sparse-24-bitmask files of compressed-tensors.",
          std::make_unique<UnpackCommand>()};
}

}  // namespace weft::cli
