// weft pack, weft unpack: a checkpoint whose N:M weights are stored without their zeros, and back.
#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/prune/pack_checkpoint.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

std::string ratio_text(uint64_t stored, uint64_t dense) {
  if (dense == 0) return "-";
  return fmt::format("{:.3f}", static_cast<double>(stored) / static_cast<double>(dense));
}

Json ratio_json(uint64_t stored, uint64_t dense) {
  if (dense == 0) return nullptr;
  return static_cast<double>(stored) / static_cast<double>(dense);
}

void print_rows(const PackReport& report, const TableFlags& tables) {
  Table table({"tensor", "shape", "dtype", "pattern", "values", ">dense", ">packed", ">ratio"});
  for (const PackReport::Tensor& row : report.tensors) {
    table.add({name_text(row.info.name), stored_shape_text(row.info.shape, row.transposed),
               std::string(dtype_name(row.info.dtype)), row.pattern.str(),
               std::string(dtype_name(row.values)), bytes_text(row.info.bytes()),
               bytes_text(row.packed_bytes), ratio_text(row.packed_bytes, row.info.bytes())});
  }
  table.can_spare({"values", "dtype", "pattern", "shape"});
  tables.print(table);
}

Json rows_json(const PackReport& report) {
  Json list = Json::array();
  for (const PackReport::Tensor& row : report.tensors) {
    list.push_back({{"name", row.info.name},
                    {"shape", row.info.shape},
                    {"transposed", row.transposed},
                    {"dtype", dtype_name(row.info.dtype)},
                    {"pattern", row.pattern.str()},
                    {"values", dtype_name(row.values)},
                    {"dense_bytes", row.info.bytes()},
                    {"packed_bytes", row.packed_bytes},
                    {"ratio", ratio_json(row.packed_bytes, row.info.bytes())},
                    {"negative_zeros_lost", row.negative_zeros_lost}});
  }
  return list;
}

class PackCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("in", in_, "Checkpoint: .safetensors, .index.json, or a folder");
    flags.positional("out", out_, "Where the packed checkpoint goes (a folder if IN is one)");
    declare_pattern(flags, pattern_);
    flags.text("--values", "fp32|bf16|same", values_,
               "Stored values: bf16 rounds F32 weights (default: same, the type of the weights)",
               one_of({"fp32", "bf16", "same"}));
    flags.text("--format", "weft|sparse-24-bitmask", format_,
               "weft, or the format of compressed-tensors for 2:4 (default: weft)",
               one_of({kWeft, kBitmask24}));
    flags.flag("--by-magnitude", by_magnitude_,
               "Prune while packing: keep the largest weights of every group");
    flags.flag("--any-size", any_size_, "Pack weights that get larger by it, too");
    names_.declare(flags);
    in_place_.declare(flags);
    tables_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    const PackOptions options = resolved_options();
    Progress progress("packing");
    const PackReport report = pack(options, listener(progress));
    progress.finish();
    common_.json ? print_report_json(report) : print_report(report);
    return 0;
  }

 private:
  static constexpr const char* kWeft = "weft";
  static constexpr const char* kBitmask24 = "sparse-24-bitmask";

  PackOptions resolved_options() const {
    PackOptions options;
    options.in = in_;
    options.out = {out_, in_place_.on};
    options.pattern = given_pattern(pattern_);
    if (values_ == "fp32") options.values = Dtype::kF32;
    if (values_ == "bf16") options.values = Dtype::kBf16;
    if (format_ == kBitmask24) options.format = PackedFormat::kBitmask24;
    options.by_magnitude = by_magnitude_;
    options.any_size = any_size_;
    options.names = names_.expressions();
    refuse_wrong_flags(options);
    return options;
  }

  void refuse_wrong_flags(const PackOptions& options) const {
    if (by_magnitude_ && !options.pattern) throw UsageError("--by-magnitude needs --pattern");
    if (options.format != PackedFormat::kBitmask24) return;
    if (options.values) {
      throw UsageError(
          fmt::format("--format {} stores values in the type of the weights: --values "
                      "{} is not accepted",
                      kBitmask24, values_));
    }
    if (options.pattern && (options.pattern->keep() != 2 || options.pattern->group() != 4)) {
      throw UsageError(
          fmt::format("--format {} is for --pattern 2:4, not {}", kBitmask24, pattern_));
    }
  }

  static PackReport pack(const PackOptions& options, const Listener& listener) {
    try {
      return pack_checkpoint(options, listener);
    } catch (const NotSparseError& error) {
      throw Error(
          fmt::format("{}: prune it with `weft mask`, or pack with --by-magnitude", error.what()));
    }
  }

  static std::vector<Skipped> skipped(const PackReport& report) {
    std::vector<Skipped> list;
    for (const PackReport::Skipped& one : report.skipped) {
      list.push_back({one.info.name, reason_text(one)});
    }
    return list;
  }

  void print_report(const PackReport& report) const {
    print_rows(report, tables_);
    tables_.print_left_alone(skipped(report), report.all_tensors);
    if (const int64_t lost = report.negative_zeros_lost(); lost > 0) {
      print(fmt::format("\n{} negative zeros outside the kept weights come back as +0\n", lost));
    }
    print_paragraph(fmt::format(
        "{} of {} tensors packed as {}: {} -> {}, ratio {}", report.tensors.size(),
        report.all_tensors, packed_format_name(report.format), bytes_text(report.dense_bytes),
        bytes_text(report.packed_bytes), ratio_text(report.packed_bytes, report.dense_bytes)));
    print_written(report.out, report.companions);
  }

  void print_report_json(const PackReport& report) const {
    print_json({{"format", packed_format_name(report.format)},
                {"by_magnitude", by_magnitude_},
                {"tensors", rows_json(report)},
                {"skipped", to_json(skipped(report))},
                {"companions", to_json(report.companions)},
                {"dense_bytes", report.dense_bytes},
                {"packed_bytes", report.packed_bytes},
                {"ratio", ratio_json(report.packed_bytes, report.dense_bytes)}});
  }

  std::string in_, out_, pattern_, values_, format_;
  bool by_magnitude_ = false, any_size_ = false;
  InPlaceFlag in_place_;
  TensorTableFlags tables_;
  CommonFlags common_;
  NameFilter names_;
};

class UnpackCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("in", in_, "Packed checkpoint: .safetensors, .index.json, or a folder");
    flags.positional("out", out_, "Where the dense checkpoint goes (a folder if IN is one)");
    in_place_.declare(flags);
    tables_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    Progress progress("unpacking");
    const PackReport report = unpack_checkpoint({in_, {out_, in_place_.on}}, listener(progress));
    progress.finish();
    common_.json ? print_report_json(report) : print_report(report);
    return 0;
  }

 private:
  static void print_report_json(const PackReport& report) {
    print_json({{"format", packed_format_name(report.format)},
                {"tensors", rows_json(report)},
                {"copied", report.all_tensors - report.tensors.size()},
                {"companions", to_json(report.companions)},
                {"packed_bytes", report.packed_bytes},
                {"dense_bytes", report.dense_bytes}});
  }

  void print_report(const PackReport& report) const {
    print_rows(report, tables_);
    print_paragraph(fmt::format("{} of {} tensors unpacked from {}: {} -> {}",
                                report.tensors.size(), report.all_tensors,
                                packed_format_name(report.format), bytes_text(report.packed_bytes),
                                bytes_text(report.dense_bytes)));
    print_written(report.out, report.companions);
  }

  std::string in_, out_;
  InPlaceFlag in_place_;
  TableFlags tables_;
  CommonFlags common_;
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
      "Weights must obey the pattern along inputs; one that does not is an error, unless it is\n"
      "excluded or pruned by --by-magnitude. F32, F16 and BF16 weights are packed, and\n"
      "`weft unpack` restores them bit for bit; other tensors are copied, and so are weights that\n"
      "would be larger packed. If IN is a folder, so is OUT, with config.json, tokenizer and "
      "other\n"
      "small files. The file is safetensors: docs/format.md shows how to read it without weft.",
      std::make_unique<PackCommand>()};
}

CommandEntry unpack_command() {
  return {"unpack", "Restore the dense checkpoint from a packed one",
          "  weft unpack packed.safetensors sparse.safetensors\n"
          "  weft unpack packed/ sparse/\n"
          "\n"
          "Takes what `weft pack` wrote, and sparse-24-bitmask files of compressed-tensors.",
          std::make_unique<UnpackCommand>()};
}

}  // namespace weft::cli
