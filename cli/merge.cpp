// weft merge: a checkpoint and what fine-tuning changed in, their sum with the pattern restored
// out.
#include "weft/prune/merge.h"

#include <filesystem>

#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/number.h"
#include "weft/core/text.h"
#include "weft/pack/packed_file.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

struct MergedTensor {
  std::string name;
  std::vector<int64_t> shape;
  Promise promise;
  std::optional<Delta::Lora> lora;
  MergeFigures figures;

  std::string pattern_text() const {
    const std::string pattern = promise.pattern.str();
    if (promise.axis == Axis::kIn) return pattern;
    return pattern + (promise.axis == Axis::kBoth ? " transposable" : " along outputs");
  }
};

class MergeCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("base", base_path_, "Checkpoint: .safetensors, .index.json, or a folder");
    flags.positional(
        "delta", delta_path_,
        "What is added: a checkpoint of LoRA pairs or full deltas, or a folder of PEFT");
    flags.positional("out", out_, "Where the merged checkpoint goes (a folder if BASE is sharded)");
    declare_pattern(flags, pattern_text_);
    flags.flag("--transposable", transposable_, "N:M along inputs and along outputs");
    flags.text("--mask", "base|new", mask_text_,
               "base: zeros of BASE stay zero; new: the largest of the sums (default: base)",
               one_of({"base", "new"}));
    flags.text("--scale", "NUMBER", scale_text_,
               "Factor of LoRA pairs (default: what adapter_config.json beside DELTA says, else 1)",
               problem_in([](const std::string& text) { parse_scale(text); }));
    names_.declare(flags);
    flags.flag("--dry-run", dry_run_, "Report, but write nothing");
    in_place_.declare(flags, "BASE");
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    if (transposable_ && pattern_text_.empty()) throw UsageError("--transposable needs --pattern");
    const Checkpoint base = Checkpoint::open(base_path_);
    const Checkpoint deltas = Checkpoint::open(delta_file());
    require_unpacked(base);
    require_unpacked(deltas);
    const Selection selection = names_.selection(base);
    match(base, deltas, selection);
    sparsity_ = base.sparsity();
    choose(base, selection);

    const CheckpointLayout layout = with_sparsity(base.layout(), sparsity_);
    std::vector<KeptFiles> kept = in_place_.kept(base, out_, layout);
    kept.push_back({"DELTA", deltas.paths()});
    output_files(out_, layout, kept);
    std::optional<CheckpointWriter> writer;
    if (!dry_run_) writer.emplace(out_, layout, kept);
    merge(base, deltas, writer ? &*writer : nullptr);
    if (writer) writer->commit();
    note_assumed_scale();
    common_.json ? report_json() : report(base);
    return 0;
  }

 private:
  static double parse_scale(const std::string& text) { return parse_number(text, -1e6, 1e6); }

  // A folder of PEFT may hold other files of tensors beside the adapter.
  std::filesystem::path delta_file() const {
    const std::filesystem::path adapter =
        std::filesystem::path(delta_path_) / "adapter_model.safetensors";
    std::error_code ignored;
    if (std::filesystem::is_regular_file(adapter, ignored)) return adapter;
    return delta_path_;
  }

  void match(const Checkpoint& base, const Checkpoint& deltas, const Selection& selection) {
    DeltaRules rules;
    rules.peft = PeftConfig::beside(deltas);
    if (!scale_text_.empty()) rules.scale = parse_scale(scale_text_);
    rules.is_transposed = [&](const TensorInfo& info) { return selection.is_transposed(info); };
    deltas_ = match_deltas(base, deltas, rules);
    WEFT_CHECK(!deltas_.empty(), "{}: the file has no tensors: nothing to merge", delta_path_);
    const bool pairs = std::any_of(deltas_.begin(), deltas_.end(),
                                   [](const auto& entry) { return entry.second.lora.has_value(); });
    if (!scale_text_.empty() && !pairs) {
      throw UsageError(fmt::format("--scale is for LoRA pairs, and {} has none", delta_path_));
    }
    if (rules.peft) adapter_config_ = rules.peft->name();
    scale_assumed_ = pairs && !rules.peft && !rules.scale;
  }

  void note_assumed_scale() const {
    if (!scale_assumed_) return;
    print_note(fmt::format(
        "{}: no adapter_config.json beside it: LoRA pairs were added at scale 1 (see --scale)",
        delta_path_));
  }

  // What is to happen to every tensor; sparsity_ becomes that of OUT.
  void choose(const Checkpoint& base, const Selection& selection) {
    for (const ShardedTensor& tensor : base.tensors()) {
      const std::string& name = tensor.info.name;
      if (!deltas_.contains(name)) {
        skipped_.push_back({name, reason_unchanged(selection, tensor.info)});
      } else if (const auto promise = promise_for(base, selection, tensor)) {
        chosen_.emplace(name, *promise);
        sparsity_.tensors.insert_or_assign(name, *promise);
      } else {
        added_.push_back({name, reason_added(selection, tensor.info)});
        sparsity_.tensors.erase(name);
      }
    }
  }

  // The pattern that a tensor with a delta is to have, or nothing.
  std::optional<Promise> promise_for(const Checkpoint& base, const Selection& selection,
                                     const ShardedTensor& tensor) const {
    const TensorInfo& info = tensor.info;
    if (selection.left_alone_by_name(info.name)) return std::nullopt;
    const bool selected = !selection.left_alone(info);
    if (selected && !pattern_text_.empty()) {
      // The adapter may know better than the base how a weight is stored (fan_in_fan_out).
      const Delta& delta = deltas_.at(info.name);
      const bool transposed = delta.lora ? delta.lora->transposed : selection.is_transposed(info);
      return Promise{Pattern::parse(pattern_text_), transposable_ ? Axis::kBoth : Axis::kIn, "",
                     transposed};
    }
    const auto planned = sparsity_.tensors.find(info.name);
    if (planned != sparsity_.tensors.end()) {
      WEFT_CHECK(WeightShape::accepts(info.shape),
                 "{}: tensor '{}': weft.sparsity promises a pattern, which shape {} cannot have",
                 base.file_of(tensor), printable(info.name), shape_text(info.shape));
      WEFT_CHECK(planned->second.row_order.empty() || planned->second.pattern.share() == 1,
                 "{}: tensor '{}' is {} by a row order, which merge does not keep: give --pattern",
                 base.file_of(tensor), printable(info.name), planned->second.pattern.str());
      Promise promise = planned->second;
      promise.transposed = selection.is_transposed(info, promise);
      return promise;
    }
    if (!selected) return std::nullopt;
    throw UsageError(fmt::format(
        "--pattern is needed: {} promises none for tensor '{}' (weft.sparsity), which {} "
        "changes",
        base.file_of(tensor), printable(info.name), delta_path_));
  }

  std::string reason_unchanged(const Selection& selection, const TensorInfo& info) const {
    const auto planned = sparsity_.tensors.find(info.name);
    if (planned != sparsity_.tensors.end()) {
      return fmt::format("no delta: keeps its {}", planned->second.pattern.str());
    }
    return selection.left_alone(info) ? "no delta" : "no delta: a weight left as it is";
  }

  std::string reason_added(const Selection& selection, const TensorInfo& info) const {
    const auto found = selection.left_alone(info);
    const std::string reason = found ? reason_text(*found, info) : "not selected";
    const auto planned = sparsity_.tensors.find(info.name);
    if (planned == sparsity_.tensors.end()) return reason;
    return fmt::format("{}: no longer promised to be {}", reason, planned->second.pattern.str());
  }

  // writer: nullptr for a dry run.
  void merge(const Checkpoint& base, const Checkpoint& deltas, CheckpointWriter* writer) {
    Progress progress("merging", base.bytes());
    for (const ShardedTensor& tensor : base.tensors()) {
      const auto delta = deltas_.find(tensor.info.name);
      if (delta == deltas_.end()) {
        if (writer != nullptr) writer->copy(base, tensor);
        progress.add(tensor.info.bytes());
        continue;
      }
      const auto promise = chosen_.find(tensor.info.name);
      MergeTask task{base, deltas, tensor, delta->second, std::nullopt, merge_mask()};
      if (promise != chosen_.end()) task.promise = promise->second;
      const MergeFigures figures = merge_tensor(task, [&](const Band& band) {
        if (writer != nullptr) write_band(*writer, task.weight(), band);
        progress.add(band.bytes.size());
      });
      if (task.promise) merged_.push_back(row_of(task, figures));
    }
  }

  MergeMask merge_mask() const { return mask_text_ == "new" ? MergeMask::kNew : MergeMask::kBase; }

  static MergedTensor row_of(const MergeTask& task, const MergeFigures& figures) {
    const TensorInfo& info = task.tensor.info;
    return {info.name, info.shape, *task.promise, task.delta.lora, figures};
  }

  void report(const Checkpoint& base) const {
    Table table({"tensor", "shape", "pattern", ">rank", ">scale", ">delta lost", ">magnitude kept",
                 ">mask changed", ">time"});
    MergeFigures all;
    for (const MergedTensor& tensor : merged_) {
      all += tensor.figures;
      table.add({printable(tensor.name), stored_shape_text(tensor.shape, tensor.promise.transposed),
                 tensor.pattern_text(), tensor.lora ? std::to_string(tensor.lora->rank) : "full",
                 tensor.lora ? fmt::format("{:.6g}", tensor.lora->scale) : "-",
                 percent(tensor.figures.delta_lost()), percent(tensor.figures.magnitude.fraction()),
                 std::to_string(tensor.figures.changed), seconds_text(tensor.figures.seconds)});
    }
    if (!merged_.empty()) print(table.str());
    print_added();
    print_skipped(skipped_);
    print(fmt::format(
        "\n{} of {} tensors merged with {} mask, {} added to without a pattern; {} of the delta "
        "lost, {} of the magnitude kept; {}\n",
        merged_.size(), base.tensors().size(),
        merge_mask() == MergeMask::kBase ? "the base's" : "a new", added_.size(),
        percent(all.delta_lost()), percent(all.magnitude.fraction()),
        dry_run_ ? "nothing written" : "written to " + out_));
  }

  void print_added() const {
    if (added_.empty()) return;
    Table table({"added without a pattern", "reason"});
    for (const Skipped& tensor : added_) table.add({printable(tensor.name), tensor.reason});
    print((merged_.empty() ? "" : "\n") + table.str());
  }

  void report_json() const {
    Json tensors = Json::array();
    for (const MergedTensor& tensor : merged_) {
      tensors.push_back({{"name", tensor.name},
                         {"shape", tensor.shape},
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
    print_json({{"pattern",
                 pattern_text_.empty() ? Json(nullptr) : Json(Pattern::parse(pattern_text_).str())},
                {"mask", mask_text_},
                {"scale", scale_text_.empty() ? Json(nullptr) : Json(parse_scale(scale_text_))},
                {"adapter_config", adapter_config_.empty() ? Json(nullptr) : Json(adapter_config_)},
                {"tensors", tensors},
                {"added", to_json(added_)},
                {"skipped", to_json(skipped_)}});
  }

  std::string base_path_, delta_path_, out_, pattern_text_, mask_text_ = "base";
  bool transposable_ = false, dry_run_ = false, scale_assumed_ = false;
  std::string scale_text_, adapter_config_;
  InPlaceFlag in_place_;
  CommonFlags common_;
  NameFilter names_;
  std::map<std::string, Delta> deltas_;    // by the tensor of BASE that they change
  std::map<std::string, Promise> chosen_;  // those of them that get a pattern
  Sparsity sparsity_;
  std::vector<Skipped> skipped_, added_;
  std::vector<MergedTensor> merged_;
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
      "added as they are. With --mask base, what the delta does where BASE is zero is lost; the\n"
      "table says how much of it.",
      std::make_unique<MergeCommand>()};
}

}  // namespace weft::cli
