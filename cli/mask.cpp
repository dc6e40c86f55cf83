// weft mask: a checkpoint in, the same checkpoint with its weights pruned to N:M out.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <span>
#include <utility>

#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/mask/retained.h"
#include "weft/mask/row_order.h"
#include "weft/mask/solver.h"
#include "weft/pack/packed_file.h"
#include "weft/prune/tensor_values.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

struct MaskedTensor {
  std::string name;
  std::vector<int64_t> shape;  // as it is stored
  bool transposed = false;
  int64_t kept = 0;
  int64_t weights = 0;
  Retained retained;
  Retained as_rows_lie;  // with --reorder: without the row order
  double bound = 0;      // no mask of this kind (and order) keeps more
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
    flags.flag("--reorder", reorder_,
               "Let rows share by an order that retains more (--pattern must share, as in 2:4x16)");
    names_.declare(flags);
    flags.text("--masks", "FILE", masks_path_,
               "Also write the masks, as U8 tensors of the same names");
    in_place_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    pattern_ = Pattern::parse(pattern_text_);
    solver_ = &chosen_solver();
    if (reorder_ && pattern_.share() == 1) {
      throw UsageError(fmt::format(
          "--reorder is for patterns that rows share, as in {}x16: at {} every row is for itself",
          pattern_.str(), pattern_.str()));
    }
    const Checkpoint checkpoint = Checkpoint::open(in_);
    require_unpacked(checkpoint);
    select(checkpoint);

    const CheckpointLayout layout = new_layout(checkpoint);
    const std::vector<KeptFiles> kept = in_place_.kept(checkpoint, out_, layout);
    refuse_clashing_masks(checkpoint, output_files(out_, layout, kept));
    CheckpointWriter writer(out_, layout, kept);
    std::unique_ptr<SafetensorsWriter> masks = masks_writer(checkpoint);
    Progress progress("masking", checkpoint.bytes());
    for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
      const ShardedTensor& tensor = checkpoint.tensors()[i];
      if (stale_orders_.contains(tensor.info.name)) {
        progress.add(tensor.info.bytes());
      } else if (selected_[i]) {
        mask_tensor(checkpoint, weights_[i], writer, masks.get(), progress);
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
    const Selection selection = names_.selection(checkpoint);
    for (const ShardedTensor& tensor : checkpoint.tensors()) {
      const auto reason = selection.left_alone(tensor.info);
      selected_.push_back(!reason);
      weights_.push_back(reason ? StoredWeight{tensor} : selection.weight(tensor));
      if (reason) skipped_.push_back(skipped(tensor.info, *reason));
    }
    WEFT_CHECK(skipped_.size() < selected_.size(), "{}: no tensor to mask: {}", in_,
               nothing_selected(skipped_));
  }

  void refuse_clashing_masks(const Checkpoint& checkpoint,
                             const std::vector<std::filesystem::path>& targets) const {
    if (masks_path_.empty()) return;
    refuse_overwriting("--masks", {masks_path_},
                       {{"IN", checkpoint.paths(), ""}, {"OUT", targets, ""}});
  }

  // Tensors that are copied keep the promises they had.
  Sparsity new_plan(const Checkpoint& checkpoint) const {
    Sparsity sparsity = checkpoint.sparsity();
    for (const auto& [name, promise] : plan_of_selected(checkpoint).tensors) {
      sparsity.tensors.insert_or_assign(name, promise);
    }
    return sparsity;
  }

  // With the row orders of masked tensors, and without those that they had before.
  CheckpointLayout new_layout(const Checkpoint& checkpoint) {
    CheckpointLayout layout = checkpoint.layout();
    const Sparsity before = checkpoint.sparsity();
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      const ShardedTensor& tensor = checkpoint.tensors()[i];
      const auto promise = before.tensors.find(tensor.info.name);
      if (promise != before.tensors.end()) stale_orders_.insert(promise->second.row_order);
      if (!reorder_) continue;
      stale_orders_.insert(row_order_name(tensor.info.name));
    }
    keep_what_is_no_order(checkpoint, before);
    for (ShardLayout& shard : layout.shards) {
      std::erase_if(shard.tensors,
                    [&](const TensorInfo& info) { return stale_orders_.contains(info.name); });
    }
    for (size_t i = 0; reorder_ && i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      auto& tensors = layout.shards[checkpoint.tensors()[i].shard].tensors;
      tensors.insert(tensors.begin(), order_info(weights_[i]));
    }
    return with_sparsity(std::move(layout), new_plan(checkpoint));
  }

  // Only integers go, and only those that no tensor which is copied still names.
  void keep_what_is_no_order(const Checkpoint& checkpoint, const Sparsity& before) {
    for (size_t i = 0; i < selected_.size(); ++i) {
      const TensorInfo& info = checkpoint.tensors()[i].info;
      if (selected_[i] || info.dtype != Dtype::kI64) stale_orders_.erase(info.name);
      const auto promise = before.tensors.find(info.name);
      if (selected_[i] || promise == before.tensors.end()) continue;
      stale_orders_.erase(promise->second.row_order);
    }
    for (size_t i = 0; reorder_ && i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      const std::string& weight = checkpoint.tensors()[i].info.name;
      const std::string order = row_order_name(weight);
      const bool taken = std::ranges::any_of(checkpoint.tensors(), [&](const ShardedTensor& other) {
        return other.info.name == order && !stale_orders_.contains(order);
      });
      WEFT_CHECK(!taken, "{}: its tensor '{}' is in the place of the row order of '{}'",
                 printable(in_, 4096), printable(order), printable(weight));
    }
  }

  static TensorInfo order_info(const StoredWeight& weight) {
    const int64_t outs = weight.dims().front();
    TensorInfo info{row_order_name(weight.tensor.info.name), Dtype::kI64, {outs}};
    info.end = static_cast<uint64_t>(outs) * sizeof(int64_t);
    return info;
  }

  Sparsity plan_of_selected(const Checkpoint& checkpoint) const {
    Sparsity sparsity;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      const std::string& name = checkpoint.tensors()[i].info.name;
      sparsity.tensors.emplace(
          name, Promise{pattern_, transposable_ ? Axis::kBoth : Axis::kIn,
                        reorder_ ? row_order_name(name) : "", weights_[i].transposed});
    }
    return sparsity;
  }

  std::unique_ptr<SafetensorsWriter> masks_writer(const Checkpoint& checkpoint) const {
    if (masks_path_.empty()) return nullptr;
    std::vector<TensorInfo> tensors;
    for (size_t i = 0; i < selected_.size(); ++i) {
      if (!selected_[i]) continue;
      tensors.push_back(checkpoint.tensors()[i].info);
      tensors.back().dtype = Dtype::kU8;
      if (reorder_) tensors.insert(tensors.begin(), order_info(weights_[i]));
    }
    Metadata metadata;
    plan_of_selected(checkpoint).store_in(metadata);
    return std::make_unique<SafetensorsWriter>(masks_path_, std::move(tensors), metadata);
  }

  void mask_tensor(const Checkpoint& checkpoint, const StoredWeight& weight,
                   CheckpointWriter& writer, SafetensorsWriter* masks, Progress& progress) {
    const ShardedTensor& tensor = weight.tensor;
    MaskedTensor result;
    result.name = tensor.info.name;
    result.shape = tensor.info.shape;
    result.transposed = weight.transposed;
    result.weights = tensor.info.elements();
    // Rows that share may come from anywhere: with an order, the tensor is one band.
    std::vector<int64_t> order;
    if (reorder_) order = identity_order(weight.dims().front());
    const int64_t multiple =
        std::max<int64_t>(pattern_.block(), static_cast<int64_t>(order.size()));
    for_each_band(checkpoint, weight, multiple, [&](const Band& band) {
      Mask mask;
      naming_weights(checkpoint, weight, band.first_row,
                     [&] { mask = mask_band(weight, band, order, result); });
      zero_outside(mask, tensor.info.dtype, band.bytes);
      write_band(writer, weight, band);
      if (masks != nullptr) write_mask(weight, band, mask, *masks);
      progress.add(band.bytes.size());
    });
    if (reorder_) {
      const std::string name = row_order_name(tensor.info.name);
      const auto bytes = std::as_bytes(std::span(order));
      writer.write({{name, Dtype::kI64, {}, 0, 0}, tensor.shard}, 0, bytes);
      if (masks != nullptr) masks->write(name, 0, bytes);
    }
    masked_.push_back(std::move(result));
  }

  static void write_mask(const StoredWeight& weight, const Band& band, const Mask& mask,
                         SafetensorsWriter& masks) {
    std::vector<std::byte> bytes = mask_bytes(mask);
    write_band(weight, {band.first_row, band.rows, 0, bytes},
               [&](uint64_t offset, std::span<const std::byte> piece) {
                 masks.write(weight.tensor.info.name, offset, piece);
               });
  }

  // An order that retains more than rows as they lie, or these.
  template <typename T>
  std::vector<int64_t> better_order(std::span<const T> weights, const WeightShape& shape,
                                    MaskedTensor& result) const {
    const auto retained_by = [&](std::span<const int64_t> order) {
      const Mask mask = find_mask(*solver_, weights.data(), shape, pattern_, order);
      return retained(weights.data(), shape, mask);
    };
    result.as_rows_lie = retained_by({});
    const std::vector<float> floats(weights.begin(), weights.end());
    std::vector<int64_t> found =
        find_row_order(floats.data(), shape, pattern_, transposable_, RowOrderOptions());
    if (retained_by(found).kept > result.as_rows_lie.kept) return found;
    return identity_order(shape.outs);
  }

  // The mask of a band, its share of the figures added to `result`. order: none, or it is found.
  Mask mask_band(const StoredWeight& weight, const Band& band, std::vector<int64_t>& order,
                 MaskedTensor& result) const {
    WeightShape shape = weight.shape();
    shape.outs = band.rows;
    return with_weights(weight.tensor.info.dtype, band.bytes, [&](auto weights) {
      const auto begun = std::chrono::steady_clock::now();
      if (reorder_) order = better_order(std::span(std::as_const(weights)), shape, result);
      Mask found = find_mask(*solver_, weights.data(), shape, pattern_, order);
      const auto ended = std::chrono::steady_clock::now();
      result.seconds += std::chrono::duration<double>(ended - begun).count();
      result.kept += found.count();
      const Retained part = retained(weights.data(), shape, found);
      result.retained += part;
      result.bound += solver_->exact ? part.kept
                      : order.empty()
                          ? transposable_bound(weights.data(), shape, pattern_)
                          : transposable_bound(in_row_order(weights.data(), shape, order).data(),
                                               shape, pattern_);
      return found;
    });
  }

  void report() const {
    std::vector<std::string> columns = {"tensor", "shape", ">density", ">retained L1"};
    if (reorder_) columns.push_back(">as rows lie");
    columns.insert(columns.end(), {"solver", ">gap", ">time"});
    Table table(columns);
    Retained all, as_rows_lie;
    for (const MaskedTensor& tensor : masked_) {
      all += tensor.retained;
      as_rows_lie += tensor.as_rows_lie;
      std::vector<std::string> row = {
          printable(tensor.name), stored_shape_text(tensor.shape, tensor.transposed),
          percent(tensor.density()), percent(tensor.retained.fraction())};
      if (reorder_) row.push_back(percent(tensor.as_rows_lie.fraction()));
      row.insert(row.end(), {std::string(solver_->name),
                             solver_->exact ? "optimal" : "<= " + percent(tensor.gap()),
                             seconds_text(tensor.seconds)});
      table.add(row);
    }
    print(table.str());
    print_skipped(skipped_);
    print(fmt::format(
        "\n{} of {} tensors masked to {}{}, {} of their magnitude kept{}; written to {}\n",
        masked_.size(), selected_.size(), pattern_.str(), transposable_ ? " transposable" : "",
        percent(all.fraction()),
        reorder_ ? fmt::format(" ({} as rows lie)", percent(as_rows_lie.fraction())) : "", out_));
  }

  void report_json() const {
    Json tensors = Json::array();
    for (const MaskedTensor& tensor : masked_) {
      tensors.push_back({{"name", tensor.name},
                         {"shape", tensor.shape},
                         {"transposed", tensor.transposed},
                         {"density", tensor.density()},
                         {"retained_l1", tensor.retained.fraction()},
                         {"score", tensor.retained.kept},
                         {"gap", tensor.gap()},
                         {"seconds", tensor.seconds}});
      if (!reorder_) continue;
      Json& entry = tensors[tensors.size() - 1];
      entry["retained_l1_as_rows_lie"] = tensor.as_rows_lie.fraction();
      entry["row_order"] = row_order_name(tensor.name);
    }
    print_json({{"pattern", pattern_.str()},
                {"transposable", transposable_},
                {"reorder", reorder_},
                {"solver", solver_->name},
                {"tensors", tensors},
                {"skipped", to_json(skipped_)}});
  }

  std::string in_, out_, pattern_text_, solver_name_, masks_path_;
  bool transposable_ = false;
  bool reorder_ = false;
  std::set<std::string> stale_orders_;  // tensors that the output does not take over
  InPlaceFlag in_place_;
  CommonFlags common_;
  NameFilter names_;
  Pattern pattern_{1, 1};
  const Solver* solver_ = nullptr;
  std::vector<bool> selected_;  // per tensor of the checkpoint
  std::vector<StoredWeight> weights_;
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
      "  weft mask model.safetensors sparse.safetensors --pattern 2:4x16 --reorder\n"
      "  weft mask model.safetensors sparse.safetensors --pattern 2:4 --transposed 'conv1d'\n"
      "\n"
      "Masked are floating-point tensors of two or four dimensions whose name ends in `weight`;\n"
      "not embeddings, normalisation layers, heads, routers of experts and position biases, told\n"
      "by their names and by a config.json beside IN. --include selects by name instead. Every\n"
      "tensor left alone is listed with the reason; with none to mask, nothing is written. Masked\n"
      "weights become zero, kept ones stay bit for bit. The output says in its metadata\n"
      "(weft.sparsity) which tensors have which pattern, so that `weft check` needs no flags.\n"
      "\n"
      "Groups run along inputs also where a weight is stored [ins, outs]: GPT-2's Conv1D layers\n"
      "are known, --transposed names others. The output remembers it.\n"
      "\n"
      "With --reorder rows share a pattern by an order that is searched for each tensor: rows "
      "that\n"
      "agree share. Weights stay where they are; the order is written beside them, as a tensor\n"
      "whose name ends in `row_order`. A tensor is then in memory as a whole.",
      std::make_unique<MaskCommand>()};
}

}  // namespace weft::cli
