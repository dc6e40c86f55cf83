#include "weft/prune/mask_checkpoint.h"

#include <algorithm>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/pack/packed_file.h"

namespace weft {
namespace {

TensorInfo order_info(const StoredWeight& weight) {
  const int64_t outs = weight.dims().front();
  TensorInfo info{row_order_name(weight.tensor.info.name), Dtype::kI64, {outs}};
  info.end = static_cast<uint64_t>(outs) * sizeof(int64_t);
  return info;
}

void write_mask(const StoredWeight& weight, const Band& band, const Mask& mask,
                SafetensorsWriter& masks) {
  std::vector<std::byte> bytes = mask_bytes(mask);
  write_band(weight, {band.first_row, band.rows, 0, bytes},
             [&](uint64_t offset, std::span<const std::byte> piece) {
               masks.write(weight.tensor.info.name, offset, piece);
             });
}

class CheckpointMasker {
 public:
  CheckpointMasker(const MaskOptions& options, const Listener& listener)
      : options_(options), listener_(listener), checkpoint_(Checkpoint::open(options.in)) {}

  MaskReport mask() {
    require_unpacked(checkpoint_);
    select();
    find_stale_orders();
    const CheckpointLayout layout = new_layout();
    const Output output = output_of(options_.out, checkpoint_, "IN", layout);
    report_.out = output.path;
    report_.companions = output.companions;
    refuse_clashing_masks(output_files(output.path, layout, output.kept));
    CheckpointWriter writer(output.path, layout, output.kept, output.companions);
    const std::unique_ptr<SafetensorsWriter> masks = masks_writer();
    ByteProgress progress(listener_, checkpoint_.bytes());
    for (const Tensor& tensor : tensors_) {
      const TensorInfo& info = tensor.weight.tensor.info;
      if (tensor.selected) {
        mask_tensor(tensor.weight, writer, masks.get(), progress);
        continue;
      }
      if (!stale_orders_.contains(info.name)) writer.copy(checkpoint_, tensor.weight.tensor);
      progress.add(info.bytes());
    }
    writer.sync();
    if (masks) masks->commit();
    writer.commit();
    return std::move(report_);
  }

 private:
  struct Tensor {
    StoredWeight weight;
    bool selected;

    const std::string& name() const { return weight.tensor.info.name; }
  };

  void select() {
    const Selection selection = select_tensors(options_.names, checkpoint_, listener_);
    for (const ShardedTensor& tensor : checkpoint_.tensors()) {
      const auto reason = selection.left_alone(tensor.info);
      tensors_.push_back({reason ? StoredWeight{tensor} : selection.weight(tensor), !reason});
      if (reason) report_.skipped.push_back({tensor.info, *reason});
    }
    WEFT_CHECK(report_.skipped.size() < tensors_.size(), "{}: no tensor to mask: {}",
               options_.in.string(), nothing_selected(report_.skipped));
  }

  // The row orders that masked tensors had before. Only integers go, and only those that no tensor
  // which is copied still names.
  void find_stale_orders() {
    const Sparsity before = checkpoint_.sparsity();
    const auto promised_order = [&](const Tensor& tensor) {
      const auto promise = before.tensors.find(tensor.name());
      return promise == before.tensors.end() ? std::string() : promise->second.row_order;
    };
    for (const Tensor& tensor : tensors_) {
      if (!tensor.selected) continue;
      stale_orders_.insert(promised_order(tensor));
      if (options_.reorder) stale_orders_.insert(row_order_name(tensor.name()));
    }
    for (const Tensor& tensor : tensors_) {
      const bool order = !tensor.selected && tensor.weight.tensor.info.dtype == Dtype::kI64;
      if (!order) stale_orders_.erase(tensor.name());
      if (!tensor.selected) stale_orders_.erase(promised_order(tensor));
    }
    stale_orders_.erase("");  // of promises without an order
    refuse_taken_orders();
  }

  void refuse_taken_orders() const {
    for (const Tensor& tensor : tensors_) {
      if (!options_.reorder || !tensor.selected) continue;
      const std::string order = row_order_name(tensor.name());
      const bool taken = std::ranges::any_of(tensors_, [&](const Tensor& other) {
        return other.name() == order && !stale_orders_.contains(order);
      });
      WEFT_CHECK(!taken, "{}: tensor '{}' has the name of the row order of '{}'",
                 printable(options_.in.string(), 4096), printable(order), printable(tensor.name()));
    }
  }

  Sparsity promises_of_masked() const {
    Sparsity sparsity;
    for (const Tensor& tensor : tensors_) {
      if (!tensor.selected) continue;
      sparsity.tensors.emplace(
          tensor.name(),
          Promise{options_.pattern, options_.solver->transposable ? Axis::kBoth : Axis::kIn,
                  options_.reorder ? row_order_name(tensor.name()) : "", tensor.weight.transposed});
    }
    return sparsity;
  }

  // With the row orders of masked tensors, and without those that they had before. Tensors that are
  // copied keep the promises they had.
  CheckpointLayout new_layout() const {
    CheckpointLayout layout = checkpoint_.layout();
    for (ShardLayout& shard : layout.shards) {
      std::erase_if(shard.tensors,
                    [&](const TensorInfo& info) { return stale_orders_.contains(info.name); });
    }
    for (const Tensor& tensor : tensors_) {
      if (!options_.reorder || !tensor.selected) continue;
      auto& tensors = layout.shards[tensor.weight.tensor.shard].tensors;
      tensors.insert(tensors.begin(), order_info(tensor.weight));
    }
    Sparsity sparsity = checkpoint_.sparsity();
    for (const auto& [name, promise] : promises_of_masked().tensors) {
      sparsity.tensors.insert_or_assign(name, promise);
    }
    return with_sparsity(std::move(layout), sparsity);
  }

  void refuse_clashing_masks(const std::vector<std::filesystem::path>& targets) const {
    if (!options_.masks) return;
    try {
      refuse_overwriting("", {*options_.masks}, {{"IN", checkpoint_.paths()}, {"OUT", targets}});
    } catch (const OverwriteError& error) {
      throw OptionError("masks", error.what());
    }
  }

  std::unique_ptr<SafetensorsWriter> masks_writer() const {
    if (!options_.masks) return nullptr;
    std::vector<TensorInfo> tensors;
    for (const Tensor& tensor : tensors_) {
      if (!tensor.selected) continue;
      tensors.push_back(tensor.weight.tensor.info);
      tensors.back().dtype = Dtype::kU8;
      if (options_.reorder) tensors.insert(tensors.begin(), order_info(tensor.weight));
    }
    Metadata metadata;
    promises_of_masked().store_in(metadata);
    return std::make_unique<SafetensorsWriter>(*options_.masks, std::move(tensors), metadata);
  }

  void mask_tensor(const StoredWeight& weight, CheckpointWriter& writer, SafetensorsWriter* masks,
                   ByteProgress& progress) {
    const PruneTask task{checkpoint_,      weight,           options_.pattern,
                         *options_.solver, options_.reorder, false};
    PruneFigures figures = prune_weight(task, [&](const Band& band, const Mask& mask) {
      write_band(writer, weight, band);
      if (masks != nullptr) write_mask(weight, band, mask, *masks);
      progress.add(band.bytes.size());
    });
    if (options_.reorder) {
      const std::string name = row_order_name(weight.tensor.info.name);
      const auto bytes = std::as_bytes(std::span(figures.order));
      writer.write({{name, Dtype::kI64, {}, 0, 0}, weight.tensor.shard}, 0, bytes);
      if (masks != nullptr) masks->write(name, 0, bytes);
    }
    report_.tensors.push_back({weight.tensor.info, weight.transposed, std::move(figures)});
  }

  const MaskOptions& options_;
  const Listener& listener_;
  Checkpoint checkpoint_;
  std::vector<Tensor> tensors_;         // of the checkpoint
  std::set<std::string> stale_orders_;  // tensors that the output does not take over
  MaskReport report_;
};

}  // namespace

double MaskedTensor::density() const {
  const int64_t weights = info.elements();
  return weights == 0 ? 1.0 : static_cast<double>(figures.kept) / static_cast<double>(weights);
}

Retained MaskReport::retained() const {
  Retained all;
  for (const MaskedTensor& tensor : tensors) all += tensor.figures.retained;
  return all;
}

Retained MaskReport::unpermuted() const {
  Retained all;
  for (const MaskedTensor& tensor : tensors) all += tensor.figures.unpermuted;
  return all;
}

MaskReport mask_checkpoint(const MaskOptions& options, const Listener& listener) {
  WEFT_CHECK(options.solver != nullptr, "mask_checkpoint needs a solver");
  if (options.reorder && options.pattern.share() == 1) {
    throw OptionError("reorder",
                      fmt::format(" needs a pattern shared by rows, as {0}x16; {0} is not",
                                  options.pattern.str()));
  }
  return CheckpointMasker(options, listener).mask();
}

}  // namespace weft
