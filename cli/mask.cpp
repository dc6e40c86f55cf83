// weft mask: a checkpoint in, the same checkpoint with its weights pruned to N:M out.
#include <chrono>
#include <filesystem>

#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/convert/tensor_values.h"
#include "weft/core/text.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"
#include "weft/pack/packed_file.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

struct MaskedTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t kept = 0;
  int64_t weights = 0;
  Retained retained;
  double bound = 0;  // no mask of this kind keeps more
  double seconds = 0;

  double density() const {
    return weights == 0 ? 1.0 : static_cast<double>(kept) / static_cast<double>(weights);
  }
  double gap() const { return bound > retained.kept ? (bound - retained.kept) / bound : 0.0; }
};

class MaskCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("in", in_, "Checkpoint: .safetensors, .index.json, or a folder");
    flags.positional("out", out_, "Where the pruned checkpoint goes (a folder if IN is sharded)");
    declare_pattern(flags, pattern_text_);
    flags.require("--pattern");
    flags.flag("--transposable", transposable_, "N:M along inputs and along outputs");
    flags.text("--solver", "NAME", solver_name_,
               "See `weft solvers` (default: magnitude, or exact if transposable)");
    names_.declare(flags);
    flags.text("--masks", "FILE", masks_path_,
               "Also write the masks, as U8 tensors of the same names");
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    pattern_ = Pattern::parse(pattern_text_);
    solver_ = &chosen_solver();
    const Checkpoint checkpoint = Checkpoint::open(in_);
    require_unpacked(checkpoint);
    select(checkpoint);

    CheckpointWriter writer(out_, checkpoint, new_plan(checkpoint));
    refuse_clashing_masks(checkpoint, writer);
    std::unique_ptr<SafetensorsWriter> masks = masks_writer(checkpoint);
    Progress progress("masking", checkpoint.bytes());
    for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
      const ShardedTensor& tensor = checkpoint.tensors()[i];
      if (selected_[i]) {
        mask_tensor(checkpoint, tensor, writer, masks.get(), progress);
      } else {
        writer.copy(checkpoint, tensor);
        progress.add(tensor.info.bytes());
      }
    }
    writer.sync();
    if (masks) masks->commit();
    writer.commit();
    progress.finish();
    common_.json ? report_json() : report();
    return 0;
  }

 private:
  const Solver& chosen_solver() const {
    if (solver_name_.empty()) return default_solver(transposable_);
    const Solver* chosen = nullptr;
    try {
      chosen = &weft::solver(solver_name_);
    } catch (const Error& error) {
      throw UsageError(fmt::format("--solver: {}", error.what()));
    }
    if (chosen->transposable && !transposable_) {
      throw UsageError(
          fmt::format("--solver {} makes transposable masks: add --transposable", chosen->name));
    }
    if (!chosen->transposable && transposable_) {
      throw UsageError(fmt::format("--solver {} makes no transposable masks", chosen->name));
    }
    return *chosen;
  }

  void select(const Checkpoint& checkpoint) {
    const Selection selection = names_.selection();
    for (const ShardedTensor& tensor : checkpoint.tensors()) {
      const auto reason = selection.reason_to_skip(tensor.info);
      selected_.push_back(!reason);
      if (reason) skipped_.push_back({tensor.info.name, *reason});
    }
    WEFT_CHECK(skipped_.size() < selected_.size(), "{}: no tensor to mask: {}", in_,
               nothing_selected(skipped_));
  }

  void refuse_clashing_masks(const Checkpoint& checkpoint, const CheckpointWriter& writer) const {
    if (masks_path_.empty()) return;
    refuse_clash({masks_path_}, checkpoint.paths(), "--masks", "IN");
    refuse_clash({masks_path_}, writer.targets(), "--masks", "OUT");
  }

  // Tensors that are copied keep the promises they had.
  SparsityPlan new_plan(const Checkpoint& checkpoint) const {
    SparsityPlan plan = checkpoint.plan();
    for (const auto& [name, promise] : plan_of_selected(checkpoint).tensors) {
      plan.tensors.insert_or_assign(name, promise);
    }
    return plan;
  }

  SparsityPlan plan_of_selected(const Checkpoint& checkpoint) const {
    SparsityPlan plan;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      plan.tensors.emplace(checkpoint.tensors()[i].info.name,
                           Promise{pattern_, transposable_ ? Axis::kBoth : Axis::kIn});
    }
    return plan;
  }

  std::unique_ptr<SafetensorsWriter> masks_writer(const Checkpoint& checkpoint) const {
    if (masks_path_.empty()) return nullptr;
    std::vector<TensorInfo> tensors;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      tensors.push_back(checkpoint.tensors()[i].info);
      tensors.back().dtype = Dtype::kU8;
    }
    Metadata metadata;
    plan_of_selected(checkpoint).store_in(metadata);
    return std::make_unique<SafetensorsWriter>(masks_path_, std::move(tensors), metadata);
  }

  void mask_tensor(const Checkpoint& checkpoint, const ShardedTensor& tensor,
                   CheckpointWriter& writer, SafetensorsWriter* masks, Progress& progress) {
    MaskedTensor result;
    result.name = tensor.info.name;
    result.shape = tensor.info.shape;
    result.weights = tensor.info.elements();
    for_each_band(checkpoint, tensor, pattern_.block(), [&](const Band& band) {
      Mask mask;
      naming_weights(checkpoint, tensor, band.first_row,
                     [&] { mask = mask_band(tensor.info, band, result); });
      zero_outside(mask, tensor.info.dtype, band.bytes);
      writer.write(tensor, band.offset, band.bytes);
      if (masks != nullptr) {
        masks->write(tensor.info.name, static_cast<uint64_t>(band.first_row * mask.cols()),
                     mask_bytes(mask));
      }
      progress.add(band.bytes.size());
    });
    masked_.push_back(std::move(result));
  }

  // The mask of a band, its share of the figures added to `result`.
  Mask mask_band(const TensorInfo& info, const Band& band, MaskedTensor& result) const {
    WeightShape shape = WeightShape::of(info.shape);
    shape.outs = band.rows;
    return with_weights(info.dtype, band.bytes, [&](auto weights) {
      const auto begun = std::chrono::steady_clock::now();
      Mask found = find_mask(*solver_, weights.data(), shape, pattern_);
      const auto ended = std::chrono::steady_clock::now();
      result.seconds += std::chrono::duration<double>(ended - begun).count();
      result.kept += found.count();
      const Retained part = retained(weights.data(), shape, found);
      result.retained += part;
      result.bound +=
          solver_->exact ? part.kept : transposable_bound(weights.data(), shape, pattern_);
      return found;
    });
  }

  void report() const {
    Table table({"tensor", "shape", ">density", ">retained L1", "solver", ">gap", ">time"});
    Retained all;
    for (const MaskedTensor& tensor : masked_) {
      all += tensor.retained;
      table.add({printable(tensor.name), shape_text(tensor.shape), percent(tensor.density()),
                 percent(tensor.retained.fraction()), std::string(solver_->name),
                 solver_->exact ? "optimal" : "<= " + percent(tensor.gap()),
                 seconds_text(tensor.seconds)});
    }
    print(table.str());
    print_skipped(skipped_);
    print(fmt::format(
        "\n{} of {} tensors masked to {}{}, {} of their magnitude kept; written to {}\n",
        masked_.size(), selected_.size(), pattern_.str(), transposable_ ? " transposable" : "",
        percent(all.fraction()), out_));
  }

  void report_json() const {
    Json tensors = Json::array();
    for (const MaskedTensor& tensor : masked_) {
      tensors.push_back({{"name", tensor.name},
                         {"shape", tensor.shape},
                         {"density", tensor.density()},
                         {"retained_l1", tensor.retained.fraction()},
                         {"score", tensor.retained.kept},
                         {"gap", tensor.gap()},
                         {"seconds", tensor.seconds}});
    }
    print_json({{"pattern", pattern_.str()},
                {"transposable", transposable_},
                {"solver", solver_->name},
                {"tensors", tensors},
                {"skipped", to_json(skipped_)}});
  }

  std::string in_, out_, pattern_text_, solver_name_, masks_path_;
  bool transposable_ = false;
  CommonFlags common_;
  NameFilter names_;
  Pattern pattern_{1, 1};
  const Solver* solver_ = nullptr;
  std::vector<bool> selected_;  // per tensor of the checkpoint
  std::vector<Skipped> skipped_;
  std::vector<MaskedTensor> masked_;
};

}  // namespace

CommandEntry mask_command() {
  return {
      "mask", "Prune the weights of a checkpoint to an N:M pattern",
      "  weft mask model.safetensors sparse.safetensors --pattern 2:4\n"
      "  weft mask model.safetensors sparse.safetensors --pattern 4:8 --transposable\n"
      "  weft mask sharded-model/ sparse-model/ --pattern 2:4 --exclude 'lm_head|q_proj'\n"
      "  weft mask model.safetensors out.safetensors --pattern 2:4x2 --masks masks.safetensors\n"
      "\n"
      "Masked are floating-point tensors of two or four dimensions whose name ends in `weight`,\n"
      "embeddings and normalisation layers aside; --include selects by name instead. Every tensor\n"
      "left alone is listed with the reason; with none to mask, nothing is written. Masked "
      "weights\n"
      "become zero, kept ones stay bit for bit. The output says in its metadata (weft.plan) which\n"
      "tensors have which pattern, so that `weft check` needs no flags.",
      std::make_unique<MaskCommand>()};
}

}  // namespace weft::cli
