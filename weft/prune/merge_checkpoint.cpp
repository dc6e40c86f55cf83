#include "weft/prune/merge_checkpoint.h"

#include <algorithm>
#include <map>

#include "weft/core/text.h"
#include "weft/pack/packed_file.h"
#include "weft/prune/elements.h"

namespace weft {
namespace {

// A folder of PEFT may hold other files of tensors beside the adapter.
std::filesystem::path adapter_in(const std::filesystem::path& path) {
  const std::filesystem::path adapter = path / "adapter_model.safetensors";
  std::error_code ignored;
  return std::filesystem::is_regular_file(adapter, ignored) ? adapter : path;
}

class CheckpointMerger {
 public:
  CheckpointMerger(const MergeOptions& options, const Listener& listener)
      : options_(options),
        listener_(listener),
        base_(Checkpoint::open(options.base)),
        deltas_(Checkpoint::open(adapter_in(options.delta))) {}

  MergeReport merge() {
    require_unpacked(base_);
    require_unpacked(deltas_);
    const Selection selection = select_tensors(options_.names, base_, listener_);
    match(selection);
    sparsity_ = base_.sparsity();
    choose(selection);

    const CheckpointLayout layout = with_sparsity(base_.layout(), sparsity_);
    Output output = output_of(options_.out, base_, "BASE", layout);
    output.kept.push_back({"DELTA", deltas_.paths()});
    output_files(output.path, layout, output.kept);
    report_.out = output.path;
    report_.companions = output.companions;
    std::optional<CheckpointWriter> writer;
    if (!options_.dry_run) writer.emplace(output.path, layout, output.kept, output.companions);
    ByteProgress progress(listener_, base_.bytes());
    for (const ShardedTensor& tensor : base_.tensors()) {
      merge(tensor, writer ? &*writer : nullptr, progress);
    }
    if (writer) writer->commit();
    return std::move(report_);
  }

 private:
  void match(const Selection& selection) {
    DeltaRules rules;
    rules.peft = PeftConfig::beside(deltas_);
    rules.scale = options_.scale;
    rules.is_transposed = [&](const TensorInfo& info) { return selection.is_transposed(info); };
    matched_ = match_deltas(base_, deltas_, rules);
    WEFT_CHECK(!matched_.empty(), "{}: the file has no tensors: nothing to merge",
               options_.delta.string());
    const bool pairs = std::ranges::any_of(
        matched_, [](const auto& entry) { return entry.second.lora.has_value(); });
    if (options_.scale && !pairs) {
      throw OptionError("scale",
                        fmt::format(" needs LoRA pairs, but {} has none", options_.delta.string()));
    }
    if (rules.peft) report_.adapter_config = rules.peft->name();
    report_.scale_assumed = pairs && !rules.peft && !rules.scale;
  }

  // What is to happen to every tensor; sparsity_ becomes that of the output.
  void choose(const Selection& selection) {
    for (const ShardedTensor& tensor : base_.tensors()) {
      const TensorInfo& info = tensor.info;
      const auto found = sparsity_.tensors.find(info.name);
      const auto promised =
          found == sparsity_.tensors.end() ? std::nullopt : std::optional(found->second.pattern);
      const auto reason = selection.left_alone(info);
      if (!matched_.contains(info.name)) {
        report_.unchanged.push_back({info, promised, !reason});
      } else if (const auto promise = promise_for(selection, tensor, !reason)) {
        chosen_.emplace(info.name, *promise);
        sparsity_.tensors.insert_or_assign(info.name, *promise);
      } else {
        report_.added.push_back({info, *reason, promised});
        sparsity_.tensors.erase(info.name);
      }
    }
  }

  // The pattern that a tensor with a delta is to have; nothing only if it is not selected.
  std::optional<Promise> promise_for(const Selection& selection, const ShardedTensor& tensor,
                                     bool selected) const {
    const TensorInfo& info = tensor.info;
    if (selection.left_alone_by_name(info.name)) return std::nullopt;
    if (selected && options_.pattern) {
      // The adapter may know better than the base how a weight is stored (fan_in_fan_out).
      const Delta& delta = matched_.at(info.name);
      const bool transposed = delta.lora ? delta.lora->transposed : selection.is_transposed(info);
      return Promise{*options_.pattern, options_.transposable ? Axis::kBoth : Axis::kIn, "",
                     transposed};
    }
    const auto promised = sparsity_.tensors.find(info.name);
    if (promised != sparsity_.tensors.end()) {
      WEFT_CHECK(WeightShape::accepts(info.shape),
                 "{}: weft.sparsity promises a pattern, which shape {} cannot have",
                 place_of(base_, tensor), shape_text(info.shape));
      if (!promised->second.row_order.empty() && promised->second.pattern.share() > 1) {
        throw OptionError(
            "pattern", fmt::format(" is needed: {} is {} by a row order, which merge does not keep",
                                   place_of(base_, tensor), promised->second.pattern.str()));
      }
      Promise promise = promised->second;
      promise.transposed = selection.is_transposed(info, promise);
      return promise;
    }
    if (!selected) return std::nullopt;
    throw OptionError(
        "pattern",
        fmt::format(
            " is needed: {} promises none for tensor '{}' (weft.sparsity), which {} changes",
            base_.file_of(tensor), printable(info.name), options_.delta.string()));
  }

  // writer: nullptr for a dry run.
  void merge(const ShardedTensor& tensor, CheckpointWriter* writer, ByteProgress& progress) {
    const auto delta = matched_.find(tensor.info.name);
    if (delta == matched_.end()) {
      if (writer != nullptr) writer->copy(base_, tensor);
      progress.add(tensor.info.bytes());
      return;
    }
    const auto promise = chosen_.find(tensor.info.name);
    MergeTask task{base_, deltas_, tensor, delta->second, std::nullopt, options_.mask};
    if (promise != chosen_.end()) task.promise = promise->second;
    const MergeFigures figures = merge_tensor(task, [&](const Band& band) {
      if (writer != nullptr) write_band(*writer, task.weight(), band);
      progress.add(band.bytes.size());
    });
    if (!task.promise) return;
    report_.tensors.push_back({tensor.info, *task.promise, task.delta.lora, figures});
  }

  const MergeOptions& options_;
  const Listener& listener_;
  Checkpoint base_, deltas_;
  std::map<std::string, Delta> matched_;   // by the tensor of the base that they change
  std::map<std::string, Promise> chosen_;  // those of them that get a pattern
  Sparsity sparsity_;
  MergeReport report_;
};

}  // namespace

MergeFigures MergeReport::figures() const {
  MergeFigures all;
  for (const Tensor& tensor : tensors) all += tensor.figures;
  return all;
}

std::string reason_text(const MergeReport::Added& added) {
  const std::string reason = reason_text(added.reason, added.info);
  if (!added.no_longer_promised) return reason;
  return fmt::format("{}: no longer promised to be {}", reason, added.no_longer_promised->str());
}

std::string reason_text(const MergeReport::Unchanged& unchanged) {
  if (unchanged.promised) return fmt::format("no delta: keeps its {}", unchanged.promised->str());
  return unchanged.selected ? "no delta: unchanged" : "no delta";
}

MergeReport merge_checkpoint(const MergeOptions& options, const Listener& listener) {
  WEFT_CHECK(!options.transposable || options.pattern,
             "merge_checkpoint: transposable needs a pattern");
  return CheckpointMerger(options, listener).merge();
}

}  // namespace weft
