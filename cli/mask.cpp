// weft mask: a checkpoint in, the same checkpoint with its weights pruned to N:M out.
#include <chrono>
#include <filesystem>

#include "cli/command.h"
#include "cli/progress.h"
#include "weft/core/text.h"
#include "weft/mask/retained.h"
#include "weft/mask/solver.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

namespace fs = std::filesystem;

struct MaskedTensor {
  std::string name;
  std::vector<int64_t> shape;
  int64_t kept = 0;
  int64_t weights = 0;
  Retained retained;
  double bound = 0;  // no mask of this kind keeps more
  double seconds = 0;

  double density() const { return static_cast<double>(kept) / static_cast<double>(weights); }
  double gap() const { return bound > retained.kept ? (bound - retained.kept) / bound : 0.0; }
};

std::string index_text(const std::vector<int64_t>& shape, int64_t row, int64_t col) {
  if (shape.size() == 2) return fmt::format("[{}, {}]", row, col);
  const int64_t taps = shape[2] * shape[3], tap = col % taps;
  return fmt::format("[{}, {}, {}, {}]", row, col / taps, tap / shape[3], tap % shape[3]);
}

class MaskCommand : public Command {
 public:
  void declare(CLI::App& app) {
    app.add_option("in", in_, "Checkpoint: .safetensors, .index.json, or a folder")->required();
    app.add_option("out", out_, "Where the pruned checkpoint goes (a folder if IN is sharded)")
        ->required();
    declare_pattern(app, pattern_)->required();
    app.add_flag("--transposable", transposable_, "N:M along inputs and along outputs");
    app.add_option("--solver", solver_,
                   "See `weft solvers` (default: magnitude, or exact if transposable)");
    names_.declare(app);
    app.add_option("--masks", masks_, "Also write the masks, as U8 tensors of the same names")
        ->type_name("FILE");
    declare_threads(app);
    declare_json(app, json_);
  }

  int run() override {
    const Pattern pattern = Pattern::parse(pattern_);
    const Solver& solver = chosen_solver();
    const Checkpoint checkpoint = Checkpoint::open(in_);
    select(checkpoint);
    refuse_clashing_paths(checkpoint);

    CheckpointWriter writer(out_, checkpoint, new_plan(checkpoint, pattern));
    std::unique_ptr<SafetensorsWriter> masks = masks_writer(checkpoint, pattern);
    Progress progress("masking", checkpoint.bytes());
    for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
      const ShardedTensor& tensor = checkpoint.tensors()[i];
      if (selected_[i]) {
        mask_tensor(checkpoint, tensor, solver, pattern, writer, masks.get(), progress);
      } else {
        writer.copy(checkpoint, tensor);
        progress.add(tensor.info.bytes());
      }
    }
    writer.sync();
    if (masks) masks->commit();
    writer.commit();
    progress.finish();
    report(solver);
    return 0;
  }

 private:
  const Solver& chosen_solver() const {
    try {
      const Solver& chosen =
          solver_.empty() ? default_solver(transposable_) : weft::solver(solver_);
      if (chosen.transposable == transposable_) return chosen;
      throw UsageError(transposable_
                           ? fmt::format("--solver {} makes no transposable masks", solver_)
                           : fmt::format("--solver {} makes transposable masks: add "
                                         "--transposable",
                                         solver_));
    } catch (const UsageError&) {
      throw;
    } catch (const Error& error) {
      throw UsageError(fmt::format("--solver: {}", error.what()));
    }
  }

  void select(const Checkpoint& checkpoint) {
    const Selection selection = names_.selection();
    for (const ShardedTensor& tensor : checkpoint.tensors()) {
      const auto reason = selection.reason_to_skip(tensor.info);
      selected_.push_back(!reason);
      if (reason) skipped_.push_back({tensor.info.name, *reason});
    }
    WEFT_CHECK(skipped_.size() < selected_.size(), "{}: no tensor to mask: {}", in_,
               skipped_.empty() ? "the file has none"
                                : fmt::format("'{}' is skipped: {}", printable(skipped_[0].name),
                                              skipped_[0].reason));
  }

  void refuse_clashing_paths(const Checkpoint& checkpoint) const {
    if (masks_.empty()) return;
    const fs::path masks = fs::weakly_canonical(masks_);
    if (masks == fs::weakly_canonical(out_)) throw UsageError("--masks and OUT are the same file");
    for (size_t i = 0; i < checkpoint.shard_count(); ++i) {
      if (masks == fs::weakly_canonical(checkpoint.shard(i).path())) {
        throw UsageError("--masks and IN are the same file");
      }
    }
  }

  // Tensors that are copied keep the promises they had.
  SparsityPlan new_plan(const Checkpoint& checkpoint, const Pattern& pattern) const {
    SparsityPlan plan = checkpoint.plan();
    const SparsityPlan selected = plan_of_selected(checkpoint, pattern);
    for (const auto& [name, promise] : selected.tensors) {
      plan.tensors.insert_or_assign(name, promise);
    }
    return plan;
  }

  SparsityPlan plan_of_selected(const Checkpoint& checkpoint, const Pattern& pattern) const {
    SparsityPlan plan;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      plan.tensors.emplace(checkpoint.tensors()[i].info.name,
                           Promise{pattern, transposable_ ? Axis::kBoth : Axis::kIn});
    }
    return plan;
  }

  std::unique_ptr<SafetensorsWriter> masks_writer(const Checkpoint& checkpoint,
                                                  const Pattern& pattern) const {
    if (masks_.empty()) return nullptr;
    std::vector<TensorInfo> tensors;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      tensors.push_back(checkpoint.tensors()[i].info);
      tensors.back().dtype = Dtype::kU8;
    }
    Metadata metadata;
    plan_of_selected(checkpoint, pattern).store_in(metadata);
    return std::make_unique<SafetensorsWriter>(masks_, std::move(tensors), metadata);
  }

  void mask_tensor(const Checkpoint& checkpoint, const ShardedTensor& tensor, const Solver& solver,
                   const Pattern& pattern, CheckpointWriter& writer, SafetensorsWriter* masks,
                   Progress& progress) {
    MaskedTensor result;
    result.name = tensor.info.name;
    result.shape = tensor.info.shape;
    result.weights = tensor.info.elements();
    for_each_band(checkpoint, tensor, pattern.block(), [&](const Band& band) {
      WeightShape shape = WeightShape::of(tensor.info.shape);
      shape.outs = band.rows;
      const Mask mask = with_weights(tensor.info.dtype, band.bytes, [&](auto weights) {
        refuse_unusable(checkpoint, tensor, band, weights, shape);
        const auto begun = std::chrono::steady_clock::now();
        Mask found = find_mask(solver, weights.data(), shape, pattern);
        const auto ended = std::chrono::steady_clock::now();
        result.seconds += std::chrono::duration<double>(ended - begun).count();
        const Retained part = retained(weights.data(), shape, found);
        result.retained += part;
        result.bound +=
            solver.exact ? part.kept : transposable_bound(weights.data(), shape, pattern);
        return found;
      });
      result.kept += mask.count();
      zero_outside(mask, tensor.info.dtype, band.bytes);
      writer.write(tensor, band.offset, band.bytes);
      if (masks != nullptr) write_mask(mask, tensor, band, *masks);
      progress.add(band.bytes.size());
    });
    masked_.push_back(std::move(result));
  }

  template <typename T>
  static void refuse_unusable(const Checkpoint& checkpoint, const ShardedTensor& tensor,
                              const Band& band, std::span<const T> weights,
                              const WeightShape& shape) {
    const auto bad = unusable_weight(MatrixView<const T>(weights.data(), shape.outs, shape.cols()));
    if (!bad) return;
    throw Error(fmt::format("{}: tensor '{}': weight {} is {}: masks need finite weights{}",
                            checkpoint.file_of(tensor), printable(tensor.info.name),
                            index_text(tensor.info.shape, band.first_row + bad->row, bad->col),
                            bad->value, sizeof(T) == 8 ? " of at most 2^900" : ""));
  }

  static void write_mask(const Mask& mask, const ShardedTensor& tensor, const Band& band,
                         SafetensorsWriter& masks) {
    std::vector<std::byte> bytes(static_cast<size_t>(mask.rows() * mask.cols()));
    for (int64_t r = 0; r < mask.rows(); ++r) {
      for (int64_t c = 0; c < mask.cols(); ++c) {
        bytes[static_cast<size_t>(r * mask.cols() + c)] = std::byte{mask.at(r, c)};
      }
    }
    masks.write(tensor.info.name, static_cast<uint64_t>(band.first_row * mask.cols()), bytes);
  }

  void report(const Solver& solver) const {
    if (json_) return report_json(solver);
    Table table({"tensor", "shape", ">density", ">retained L1", "solver", ">gap", ">time"});
    Retained all;
    for (const MaskedTensor& tensor : masked_) {
      all += tensor.retained;
      table.add({printable(tensor.name), shape_text(tensor.shape), percent(tensor.density()),
                 percent(tensor.retained.fraction()), std::string(solver.name),
                 solver.exact ? "optimal" : "<= " + percent(tensor.gap()),
                 seconds_text(tensor.seconds)});
    }
    print(table.str());
    print_skipped(skipped_);
    print(fmt::format(
        "\n{} of {} tensors masked to {}{}, {} of their magnitude kept; written to {}\n",
        masked_.size(), selected_.size(), pattern_, transposable_ ? " transposable" : "",
        percent(all.fraction()), out_));
  }

  void report_json(const Solver& solver) const {
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
    print_json({{"pattern", pattern_},
                {"transposable", transposable_},
                {"solver", solver.name},
                {"tensors", tensors},
                {"skipped", to_json(skipped_)}});
  }

  std::string in_, out_, pattern_, solver_, masks_;
  bool transposable_ = false, json_ = false;
  NameFilter names_;
  std::vector<bool> selected_;  // per tensor of the checkpoint
  std::vector<Skipped> skipped_;
  std::vector<MaskedTensor> masked_;
};

}  // namespace

void add_mask(CLI::App& app, std::unique_ptr<Command>& chosen) {
  add_command<MaskCommand>(
      app, chosen, "mask", "Prune the weights of a checkpoint to an N:M pattern",
      "  weft mask model.safetensors sparse.safetensors --pattern 2:4\n"
      "  weft mask model.safetensors sparse.safetensors --pattern 4:8 --transposable\n"
      "  weft mask sharded-model/ sparse-model/ --pattern 2:4 --exclude 'lm_head|q_proj'\n"
      "  weft mask model.safetensors out.safetensors --pattern 2:4x2 --masks masks.safetensors\n"
      "\n"
      "Masked are floating-point tensors of two or four dimensions whose name ends in `weight`,\n"
      "embeddings and normalisation layers aside; --include selects by name instead. Every tensor\n"
      "left alone is listed with the reason. Masked weights become zero, kept ones stay bit for\n"
      "bit; the output says in its metadata (weft.plan) which tensors have which pattern, so that\n"
      "`weft check` needs no flags.");
}

}  // namespace weft::cli
