#include "weft/prune/convert_checkpoint.h"

#include <algorithm>

#include "weft/core/text.h"
#include "weft/pack/packed_file.h"
#include "weft/prune/tensor_values.h"

namespace weft {
namespace {

class CheckpointConverter {
 public:
  CheckpointConverter(const ConvertOptions& options, const Listener& listener)
      : options_(options),
        listener_(listener),
        settings_(options.conversion),
        checkpoint_(Checkpoint::open(options.in)) {}

  ConvertReport convert() {
    require_unpacked(checkpoint_);
    open_inputs();
    // Choosing patterns looks at all weights once more.
    ByteProgress progress(listener_, checkpoint_.bytes() * (settings_.pattern ? 1 : 2));
    const auto advance = [&](uint64_t bytes) { progress.add(bytes); };
    NameExpressions names = options_.names;
    names.with_heads = names.with_heads || model_ != nullptr;
    const Conversion conversion(checkpoint_, select_tensors(names, checkpoint_, listener_),
                                settings_, model_ ? &model_->inputs() : file_.get(), advance);
    report_.left_out = conversion.left_out();
    report_.all_tensors = checkpoint_.tensors().size();
    WEFT_CHECK(!conversion.layers().empty(), "{}: no layer to convert: {}", options_.in.string(),
               nothing_left());
    convert_all(conversion, advance);
    note_idle_inputs();
    note_blind_layers();
    return std::move(report_);
  }

 private:
  // What can be wrong with the output shows before the network is run.
  void open_inputs() {
    if (options_.calibration) file_ = std::make_unique<CalibrationFile>(*options_.calibration);
    const CheckpointLayout layout = checkpoint_.layout();
    output_ = output_of(options_.out, checkpoint_, "IN", layout);
    if (file_) output_.kept.push_back({"the calibration", file_->paths()});
    output_files(output_.path, layout, output_.kept);
    report_.out = output_.path;
    report_.companions = output_.companions;
    if (!options_.open_model) return;
    model_ = options_.open_model();
    settings_.leave = model_->not_converted(options_.sparse_ends);
    if (estimates_norms()) settings_.written_elsewhere = model_->norm_tensors();
  }

  bool estimates_norms() const {
    return model_ && !options_.keep_norms && settings_.method.recovery == Recovery::kLeastSquares &&
           !model_->norm_tensors().empty();
  }

  void note(const std::string& text) const {
    if (listener_.note) listener_.note(text);
  }

  void note_idle_inputs() const {
    const bool chooses = !settings_.pattern && settings_.density;
    if (!file_ || settings_.method.needs_inputs() || chooses) return;
    note(
        fmt::format("the calibration is used for the report only: method {} converts without "
                    "inputs (wanda, sparsegpt and adaprune use them)",
                    settings_.method.name));
  }

  void note_blind_layers() const {
    const auto blind = std::ranges::count_if(report_.layers, &LayerOutcome::blind);
    if (blind == 0) return;
    const auto first = std::ranges::find_if(report_.layers, &LayerOutcome::blind);
    note(
        fmt::format("the calibration inputs of {} of {} layers are all zero, first of '{}': they "
                    "say nothing about what pruning loses there",
                    blind, report_.layers.size(), printable(first->name)));
  }

  std::string nothing_left() const {
    if (const std::string dense = all_kept_dense(); !dense.empty()) return dense;
    if (report_.left_out.empty()) return nothing_selected({});
    const LayerLeftOut& first = report_.left_out.front();
    return nothing_selected(first.info.name, reason_text(first));
  }

  // Why patterns that are chosen by zeros leave nothing to convert; empty if they do not.
  std::string all_kept_dense() const {
    size_t layers = 0;
    double most = 0.0;
    for (const LayerLeftOut& one : report_.left_out) {
      if (one.reason != NotConverted::kKeptDense) continue;
      ++layers;
      most = std::max(most, one.zeros);
    }
    if (layers == 0 || settings_.density) return "";
    return fmt::format(
        "patterns are chosen by the zeros of the weights, and {}; set a density, as 0.5, or a "
        "pattern, as 2:4",
        most < 0.01 ? fmt::format("this file is dense: no layer of {} has more than {:.1f}% zeros",
                                  layers, 100 * most)
                    : fmt::format("no layer of {} has more than {:.1f}%, too few for any pattern "
                                  "of groups of {} at confidence {:g}",
                                  layers, 100 * most, settings_.auto_group, settings_.confidence));
  }

  void convert_all(const Conversion& conversion, const std::function<void(uint64_t)>& advance) {
    std::unique_ptr<CheckpointWriter> writer;
    if (!options_.dry_run) {
      writer = std::make_unique<CheckpointWriter>(output_.path, checkpoint_, conversion.promises(),
                                                  output_.kept, output_.companions);
    }
    for (const LayerToConvert& layer : conversion.layers()) {
      report_.layers.push_back(conversion.convert(layer, writer.get()));
      if (!estimates_norms()) report_.layers.back().changed.clear();
      advance(layer.weight.tensor.info.bytes());
    }
    const auto norms = new_norms();
    if (!writer) return;
    for (const auto& [name, values] : norms) {
      const ShardedTensor* tensor = find_tensor(checkpoint_, name);
      WEFT_CHECK(tensor != nullptr, "{}: {} is missing", options_.in.string(), name);
      write_values(*writer, *tensor, values);
    }
    conversion.copy_others(*writer, advance);
    writer->commit();
  }

  // Only after all layers: what goes into one is what went into it in the dense network.
  std::map<std::string, std::vector<double>> new_norms() {
    if (!estimates_norms()) return {};
    for (LayerOutcome& outcome : report_.layers) {
      for (const auto& [tensor, values] : outcome.changed) model_->set(tensor.info.name, values);
      outcome.changed.clear();
    }
    auto norms = model_->estimate_norms();
    report_.norms_estimated = norms.size();
    return norms;
  }

  const ConvertOptions& options_;
  const Listener& listener_;
  ConversionOptions settings_;
  Checkpoint checkpoint_;
  std::unique_ptr<CalibrationFile> file_;
  std::unique_ptr<ModelToConvert> model_;
  Output output_;
  ConvertReport report_;
};

}  // namespace

ConvertReport convert_checkpoint(const ConvertOptions& options, const Listener& listener) {
  WEFT_CHECK(!options.calibration || !options.open_model,
             "convert_checkpoint: both a calibration file and a network are given: accepted is one "
             "of them");
  return CheckpointConverter(options, listener).convert();
}

}  // namespace weft
