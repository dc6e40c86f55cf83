// weft merge: a checkpoint and what fine-tuning changed in, their sum with the pattern restored
// out.
#include "cli/shared.h"
#include "weft/core/number.h"
#include "weft/core/text.h"
#include "weft/prune/merge_checkpoint.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class MergeCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("base", base_, "Checkpoint: .safetensors, .index.json, or a folder");
    flags.positional("delta", delta_,
                     "Checkpoint of LoRA pairs or full deltas, or a folder of PEFT");
    flags.positional("out", out_, "Where the merged checkpoint goes (a folder if BASE is one)");
    declare_pattern(flags, pattern_);
    flags.flag("--transposable", transposable_, "N:M along inputs and along outputs");
    flags.text("--mask", "base|new", mask_,
               "base: zeros of BASE stay zero; new: keep the largest sums (default: base)",
               one_of({"base", "new"}));
    flags.text("--scale", "NUMBER", scale_,
               "Factor of LoRA pairs (default: from adapter_config.json beside DELTA, else 1)",
               problem_in([](const std::string& text) { parse_scale(text); }));
    names_.declare(flags);
    flags.flag("--dry-run", dry_run_, "Report, but write nothing");
    in_place_.declare(flags, "BASE");
    tables_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    if (transposable_ && pattern_.empty()) throw UsageError("--transposable needs --pattern");
    MergeOptions options;
    options.base = base_;
    options.delta = delta_;
    options.out = {out_, in_place_.on};
    options.pattern = given_pattern(pattern_);
    options.transposable = transposable_;
    options.mask = mask_ == "new" ? MergeMask::kNew : MergeMask::kBase;
    if (!scale_.empty()) options.scale = parse_scale(scale_);
    options.names = names_.expressions();
    options.dry_run = dry_run_;
    Progress progress("merging");
    const MergeReport report = merge_checkpoint(options, listener(progress));
    progress.finish();
    if (report.scale_assumed) {
      print_note(fmt::format(
          "{}: no adapter_config.json beside it: LoRA pairs were added at scale 1 (see --scale)",
          delta_));
    }
    common_.json ? print_report_json(options, report) : print_report(options, report);
    return 0;
  }

 private:
  static double parse_scale(const std::string& text) { return parse_number(text, -1e6, 1e6); }

  static std::string pattern_text(const Promise& promise) {
    const std::string pattern = promise.pattern.str();
    if (promise.axis == Axis::kIn) return pattern;
    return pattern + (promise.axis == Axis::kBoth ? " transposable" : " along outputs");
  }

  static std::vector<Skipped> texts(const auto& tensors) {
    std::vector<Skipped> list;
    for (const auto& tensor : tensors) list.push_back({tensor.info.name, reason_text(tensor)});
    return list;
  }

  void print_report(const MergeOptions& options, const MergeReport& report) const {
    Table table({"tensor", "shape", "pattern", ">rank", ">scale", ">delta lost", ">magnitude kept",
                 ">mask changed", ">time"});
    for (const MergeReport::Tensor& tensor : report.tensors) {
      table.add({name_text(tensor.info.name),
                 stored_shape_text(tensor.info.shape, tensor.promise.transposed),
                 pattern_text(tensor.promise),
                 tensor.lora ? std::to_string(tensor.lora->rank) : "full",
                 tensor.lora ? fmt::format("{:.6g}", tensor.lora->scale) : "-",
                 percent(tensor.figures.delta_lost()), percent(tensor.figures.magnitude.fraction()),
                 std::to_string(tensor.figures.changed), seconds_text(tensor.figures.seconds)});
    }
    table.can_spare({"time", "shape", "scale", "rank", "mask changed"});
    if (!report.tensors.empty()) tables_.print(table);
    const size_t all = report.tensors.size() + report.added.size() + report.unchanged.size();
    print_added(report);
    tables_.print_left_alone(texts(report.unchanged), all);
    const MergeFigures sum = report.figures();
    print_paragraph(fmt::format(
        "{} of {} tensors merged with {} mask; {} of the delta lost, {} of the magnitude kept",
        report.tensors.size(), all, options.mask == MergeMask::kBase ? "the base's" : "a new",
        percent(sum.delta_lost()), percent(sum.magnitude.fraction())));
    options.dry_run ? print("nothing was written (--dry-run)\n")
                    : print_written(report.out, report.companions);
  }

  void print_added(const MergeReport& report) const {
    if (report.added.empty()) return;
    if (!tables_.verbose) {
      print_paragraph(fmt::format("{} tensors added to without a pattern: {}", report.added.size(),
                                  count_reasons(texts(report.added))));
      return;
    }
    Table table({"added without a pattern", "reason"});
    for (const Skipped& tensor : texts(report.added)) {
      table.add({name_text(tensor.name), tensor.reason});
    }
    if (!report.tensors.empty()) print("\n");
    tables_.print(table);
  }

  void print_report_json(const MergeOptions& options, const MergeReport& report) const {
    const auto value = [](const auto& given) { return given ? Json(*given) : Json(nullptr); };
    Json tensors = Json::array();
    for (const MergeReport::Tensor& tensor : report.tensors) {
      tensors.push_back({{"name", tensor.info.name},
                         {"shape", tensor.info.shape},
                         {"pattern", tensor.promise.pattern.str()},
                         {"axis", axis_name(tensor.promise.axis)},
                         {"transposed", tensor.promise.transposed},
                         {"rank", tensor.lora ? Json(tensor.lora->rank) : Json(nullptr)},
                         {"scale", tensor.lora ? Json(tensor.lora->scale) : Json(nullptr)},
                         {"delta_lost", tensor.figures.delta_lost()},
                         {"retained_l1", tensor.figures.magnitude.fraction()},
                         {"changed_bits", tensor.figures.changed},
                         {"seconds", tensor.figures.seconds}});
    }
    print_json({{"pattern", options.pattern ? Json(options.pattern->str()) : Json(nullptr)},
                {"mask", mask_},
                {"scale", value(options.scale)},
                {"adapter_config", value(report.adapter_config)},
                {"tensors", tensors},
                {"companions", to_json(report.companions)},
                {"added", to_json(texts(report.added))},
                {"skipped", to_json(texts(report.unchanged))}});
  }

  std::string base_, delta_, out_, pattern_, mask_ = "base", scale_;
  bool transposable_ = false, dry_run_ = false;
  InPlaceFlag in_place_;
  TensorTableFlags tables_;
  CommonFlags common_;
  NameFilter names_;
};

}  // namespace

CommandEntry merge_command() {
  return {
      "merge", "Add LoRA pairs or other deltas to sparse weights, and keep their pattern",
      "  weft merge sparse.safetensors adapter-folder/ merged.safetensors\n"
      "  weft merge sparse.safetensors lora.safetensors merged.safetensors --scale 2\n"
      "  weft merge model.safetensors delta.safetensors merged.safetensors --pattern 2:4\n"
      "  weft merge sparse-model/ adapter/ merged-model/ --mask new --scale 0.5\n"
      "  weft merge sparse.safetensors delta.safetensors merged.safetensors --dry-run\n"
      "\n"
      "DELTA holds, for tensors of BASE, a tensor of the same name that is added, or a LoRA pair\n"
      "<layer>.lora_A.weight, <layer>.lora_B.weight: then scale * B A is added to <layer>.weight.\n"
      "PEFT's names are known, and adapter_config.json beside DELTA gives the scale of each layer\n"
      "(lora_alpha / r, use_rslora, rank_pattern, alpha_pattern). Without --pattern, every weight\n"
      "keeps the one that BASE promises (weft.sparsity). Deltas of other tensors (biases, norms) "
      "are\n"
      "added as they are. --mask base drops the delta where BASE is zero; the table shows how\n"
      "much is lost.",
      std::make_unique<MergeCommand>()};
}

}  // namespace weft::cli
