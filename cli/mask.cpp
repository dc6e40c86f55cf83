// weft mask: a checkpoint in, the same checkpoint with its weights pruned to N:M out.
#include "weft/prune/mask_checkpoint.h"

#include "cli/shared.h"
#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class MaskCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("in", in_, "Checkpoint: .safetensors, .index.json, or a folder");
    flags.positional("out", out_, "Where the pruned checkpoint goes (a folder if IN is one)");
    declare_pattern(flags, pattern_);
    flags.require("--pattern");
    flags.flag("--transposable", transposable_, "N:M along inputs and along outputs");
    flags.text("--solver", "NAME", solver_name_,
               "See `weft solvers` (default: magnitude, or exact if transposable)");
    flags.flag("--reorder", reorder_,
               "Permute rows so that those that share a pattern agree (needs xS, as in 2:4x16)");
    names_.declare(flags);
    flags.text("--masks", "FILE", masks_path_,
               "Also write the masks, as U8 tensors of the same names");
    in_place_.declare(flags);
    tables_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    MaskOptions options{
        in_,      {out_, in_place_.on}, {}, Pattern::parse(pattern_), &chosen_solver(),
        reorder_, names_.expressions()};
    if (!masks_path_.empty()) options.masks = masks_path_;
    Progress progress("masking");
    const MaskReport report = mask_checkpoint(options, listener(progress));
    progress.finish();
    common_.json ? print_report_json(options, report) : print_report(options, report);
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
      throw UsageError(fmt::format("--solver {} does not make transposable masks", chosen->name));
    }
    return *chosen;
  }

  void print_report(const MaskOptions& options, const MaskReport& report) const {
    const Solver& solver = *options.solver;
    std::vector<std::string> columns = {"tensor", "shape", ">density", ">retained L1"};
    if (reorder_) columns.push_back(">unpermuted");
    columns.insert(columns.end(), {"solver", ">gap", ">time"});
    Table table(columns);
    const size_t all = report.tensors.size() + report.skipped.size();
    for (const MaskedTensor& tensor : report.tensors) {
      const PruneFigures& figures = tensor.figures;
      std::vector<std::string> row = {
          name_text(tensor.info.name), stored_shape_text(tensor.info.shape, tensor.transposed),
          percent(tensor.density()), percent(figures.retained.fraction())};
      if (reorder_) row.push_back(percent(figures.unpermuted.fraction()));
      row.insert(row.end(), {std::string(solver.name),
                             solver.exact ? "optimal" : "<= " + percent(figures.gap()),
                             seconds_text(figures.seconds)});
      table.add(row);
    }
    table.can_spare({"time", "solver", "gap", "density"});
    tables_.print(table);
    tables_.print_left_alone(skipped(report.skipped), all);
    print_paragraph(fmt::format(
        "{} of {} tensors masked to {}{} by {}, {} of their magnitude kept{}",
        report.tensors.size(), all, options.pattern.str(), transposable_ ? " transposable" : "",
        solver.name, percent(report.retained().fraction()),
        reorder_ ? fmt::format(" ({} unpermuted)", percent(report.unpermuted().fraction())) : ""));
    print_written(report.out, report.companions);
  }

  void print_report_json(const MaskOptions& options, const MaskReport& report) const {
    Json tensors = Json::array();
    for (const MaskedTensor& tensor : report.tensors) {
      const PruneFigures& figures = tensor.figures;
      tensors.push_back({{"name", tensor.info.name},
                         {"shape", tensor.info.shape},
                         {"transposed", tensor.transposed},
                         {"density", tensor.density()},
                         {"retained_l1", figures.retained.fraction()},
                         {"score", figures.retained.kept},
                         {"gap", figures.gap()},
                         {"seconds", figures.seconds}});
      if (!reorder_) continue;
      Json& entry = tensors[tensors.size() - 1];
      entry["retained_l1_unpermuted"] = figures.unpermuted.fraction();
      entry["row_order"] = row_order_name(tensor.info.name);
    }
    print_json({{"pattern", options.pattern.str()},
                {"transposable", transposable_},
                {"reorder", reorder_},
                {"solver", options.solver->name},
                {"tensors", tensors},
                {"companions", to_json(report.companions)},
                {"skipped", to_json(skipped(report.skipped))}});
  }

  std::string in_, out_, pattern_, solver_name_, masks_path_;
  bool transposable_ = false;
  bool reorder_ = false;
  InPlaceFlag in_place_;
  TensorTableFlags tables_;
  CommonFlags common_;
  NameFilter names_;
};

}  // namespace

CommandEntry mask_command() {
  return {
      "mask", "Prune the weights of a checkpoint to an N:M pattern",
      "  weft mask model.safetensors sparse.safetensors --pattern 2:4\n"
      "  weft mask model.safetensors sparse.safetensors --pattern 4:8 --transposable\n"
      "  weft mask model-folder/ sparse-folder/ --pattern 2:4                with its tokenizer\n"
      "  weft mask sharded-model/ sparse-model/ --pattern 2:4 --exclude 'lm_head|q_proj'\n"
      "  weft mask model.safetensors out.safetensors --pattern 2:4x2 --masks masks.safetensors\n"
      "  weft mask model.safetensors sparse.safetensors --pattern 2:4x16 --reorder\n"
      "  weft mask model.safetensors sparse.safetensors --pattern 2:4 --transposed 'conv1d'\n"
      "\n"
      "mask takes floating-point tensors of two or four dimensions whose name ends in `weight`,\n"
      "but no embeddings, normalisation layers, heads, routers of experts or position biases;\n"
      "it knows these by name and by the config.json beside IN. --include selects by name "
      "instead.\n"
      "What is left alone is counted; --verbose lists it. If all are, nothing is written. Pruned\n"
      "weights become zero; kept ones do not change. The output's metadata (weft.sparsity) "
      "records\n"
      "the pattern of each tensor, so that `weft check` needs no flags.\n"
      "\n"
      "If IN is a folder, so is OUT: config.json, tokenizer and other small files are copied.\n"
      "\n"
      "Groups run along inputs, also in weights stored [ins, outs]: weft knows GPT-2's Conv1D\n"
      "layers, --transposed names others. The output records which they are.\n"
      "\n"
      "--reorder searches a permutation of the rows of each tensor, so that similar rows share a\n"
      "pattern. Weights stay in place; the permutation is written as a tensor whose name ends in\n"
      "`row_order`. Memory: the largest tensor.",
      std::make_unique<MaskCommand>()};
}

}  // namespace weft::cli
