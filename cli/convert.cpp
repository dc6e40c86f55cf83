#include "cli/convert.h"

#include <algorithm>

#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class ConvertCommand : public Command {
 public:
  explicit ConvertCommand(OpenModel open_model) : open_model_(std::move(open_model)) {}

  void declare(Flags& flags) override {
    flags.positional("in", in_, "Checkpoint: .safetensors, .index.json, or a folder");
    flags.positional("out", out_, "Where the converted checkpoint goes (a folder if IN is one)");
    flags.text("--pattern", "N:M[xS]|auto", pattern_,
               "keep:group, as in 2:4; or auto: keep by layer, from its zeros or --density",
               problem_in([](const std::string& text) {
                 if (text != "auto") Pattern::parse(text);
               }));
    flags.require("--pattern");
    flags.flag("--transposable", options_.transposable, "N:M along inputs and along outputs");
    flags.text("--method", "NAME", method_, "magnitude, wanda, absorption, sparsegpt or adaprune",
               problem_in([](const std::string& text) { method_of(text); }));
    flags.text("--support", "NAME", support_,
               "How adaprune and absorption choose weights: magnitude, wanda, sparsegpt (default: "
               "sparsegpt for adaprune, magnitude for absorption)");
    declare_inputs(flags);
    declare_auto(flags);
    flags.number(
        "--tolerance", options_.least_squares.tolerance, 0, 1,
        "adaprune: a row stops when its possible gain is below this share of its gain so far");
    flags.integer("--iterations", options_.least_squares.iterations, 1, 1'000'000,
                  "adaprune: most steps per row");
    flags.number("--damping", options_.damping, 0, 1e6,
                 "sparsegpt: added to the diagonal of the Gram matrix, as a share of its mean");
    names_.declare(flags);
    flags.flag("--dry-run", dry_run_, "Convert and report, but write nothing");
    in_place_.declare(flags);
    tables_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    resolve_flags();
    ConvertOptions options;
    options.in = in_;
    options.out = {out_, in_place_.on};
    options.conversion = options_;
    if (!calibration_.empty()) options.calibration = calibration_;
    if (!model_flags_.folder.empty()) {
      model_flags_.weights = in_;
      options.open_model = [this] { return open_model_(model_flags_); };
    }
    options.sparse_ends = sparse_ends_;
    options.keep_norms = keep_norms_;
    options.names = names_.expressions();
    options.dry_run = dry_run_;
    Progress progress("converting");
    const ConvertReport report = convert_checkpoint(options, listener(progress));
    progress.finish();
    common_.json ? print_report_json(report) : print_report(report);
    return 0;
  }

 private:
  void declare_inputs(Flags& flags) {
    flags.text("--calibration", "FILE", calibration_,
               "Inputs of the layers, as safetensors: <layer>.input or <layer>.gram");
    flags.text(
        "--model-dir", "DIR", model_flags_.folder,
        "Run of `weft train` that IN belongs to; its network computes the inputs of the layers");
    flags.text("--data", "DATA", model_flags_.data,
               "With --model-dir: data to use instead of the run's");
    flags.integer("--samples", model_flags_.samples, 1, int64_t{1} << 32,
                  "With --model-dir: training samples to calibrate on");
    flags.flag("--sparse-ends", sparse_ends_,
               "With --model-dir: convert the first and the last layer too");
    flags.flag("--keep-norms", keep_norms_,
               "With --model-dir and adaprune: keep the running statistics of batch normalisation");
    flags.exclude("--calibration", "--model-dir");
  }

  void declare_auto(Flags& flags) {
    flags.integer("--group", group_, 2, Pattern::kMaxGroup, "With auto: group size");
    flags.number("--confidence", options_.confidence, 0, 0.999999,
                 "With auto: share of groups that must fit the pattern unpruned");
    flags.number("--density", density_, 0, 1,
                 "With auto: share of all weights to keep; layers that lose less keep less "
                 "(0: by zeros)");
  }

  void resolve_flags() {
    try {
      options_.method = method_of(method_, support_);
    } catch (const Error& error) {
      throw UsageError(fmt::format("--support: {}", error.what()));
    }
    if (pattern_ != "auto") options_.pattern = Pattern::parse(pattern_);
    options_.auto_group = static_cast<int>(group_);
    if (density_ > 0) options_.density = density_;
    if (options_.method.needs_inputs() && calibration_.empty() && model_flags_.folder.empty()) {
      throw UsageError(fmt::format(
          "--method {} needs the inputs of the layers: give --calibration or --model-dir",
          method_));
    }
    refuse_idle_flags();
  }

  // A flag that would do nothing was meant to do something.
  void refuse_idle_flags() const {
    const ConversionOptions usual;
    const bool of_model = !model_flags_.data.empty() || sparse_ends_ || keep_norms_ ||
                          model_flags_.samples != ModelFlags().samples;
    const bool of_auto =
        density_ > 0 || group_ != usual.auto_group || options_.confidence != usual.confidence;
    const bool of_squares = options_.least_squares.tolerance != usual.least_squares.tolerance ||
                            options_.least_squares.iterations != usual.least_squares.iterations;
    const bool solves = options_.method.recovery == Recovery::kLeastSquares;
    const auto refuse = [](bool idle, const char* why) {
      if (idle) throw UsageError(why);
    };
    refuse(!names_.transposed.empty() && !model_flags_.folder.empty(),
           "--transposed is for models of other programs: --model-dir stores [outs, ins]");
    refuse(of_model && model_flags_.folder.empty(),
           "--data, --samples, --sparse-ends and --keep-norms go with --model-dir");
    refuse(of_auto && pattern_ != "auto",
           "--group, --confidence and --density go with --pattern auto");
    refuse(density_ > 0 && options_.confidence != usual.confidence,
           "--density excludes --confidence");
    refuse(of_squares && !solves, "--tolerance and --iterations go with --method adaprune");
    refuse(keep_norms_ && !solves, "--keep-norms goes with --method adaprune");
    refuse(options_.damping != usual.damping && options_.method.support != SupportRule::kSparseGpt,
           "--damping goes with sparsegpt, as --method or as the support of adaprune");
  }

  static std::vector<Skipped> skipped(const ConvertReport& report) {
    std::vector<Skipped> list;
    for (const LayerLeftOut& one : report.left_out) {
      const bool end =
          one.reason == NotConverted::kFirstLayer || one.reason == NotConverted::kLastLayer;
      list.push_back({one.info.name, reason_text(one) + (end ? " (see --sparse-ends)" : ""),
                      one.reason == NotConverted::kKeptDense ? "stays dense" : ""});
    }
    return list;
  }

  static std::string error_text(const std::optional<double>& error) {
    return error ? fmt::format("{:.5f}", *error) : "-";
  }

  void print_report(const ConvertReport& report) const {
    const bool sparse_input = std::ranges::any_of(
        report.layers, [](const LayerOutcome& one) { return one.zeros > 0.01; });
    std::vector<std::string> headings = {"layer",         "shape",        "pattern",
                                         ">error before", ">error after", ">retained L1"};
    if (sparse_input) headings.insert(headings.end(), {">zeros before", ">too full", ">expected"});
    headings.push_back(">time");
    Table table(headings);
    for (const LayerOutcome& one : report.layers) {
      std::vector<std::string> row = {
          name_text(one.name),         stored_shape_text(one.shape, one.transposed),
          one.pattern.str(),           error_text(one.error_before),
          error_text(one.error_after), percent(one.retained.fraction())};
      if (sparse_input) {
        row.insert(row.end(),
                   {percent(one.zeros), percent(violated(one)), percent(one.expected_violations)});
      }
      row.push_back(seconds_text(one.seconds));
      table.add(row);
    }
    table.can_spare({"error before", "error after", "time", "shape"});
    tables_.print(table);
    if (sparse_input) {
      print(
          "\ntoo full: input groups with more non-zeros than the pattern keeps; expected: the same "
          "for zeros at random places\n");
    }
    print_reasons(report);
    tables_.print_left_alone(skipped(report), report.all_tensors);
    print_paragraph(fmt::format("{} layer{} converted to {}{} by {}", report.layers.size(),
                                report.layers.size() == 1 ? "" : "s", pattern_text(),
                                options_.transposable ? " transposable" : "", method_));
    dry_run_ ? print("nothing was written (--dry-run)\n")
             : print_written(report.out, report.companions);
  }

  std::string pattern_text() const {
    return options_.pattern ? options_.pattern->str() : "a pattern of its own";
  }

  static double violated(const LayerOutcome& one) {
    return one.groups.groups == 0 ? 0.0
                                  : static_cast<double>(one.groups.violations) /
                                        static_cast<double>(one.groups.groups);
  }

  // Why each pattern was chosen, and other notes: how many layers they are of, or which.
  void print_reasons(const ConvertReport& report) const {
    Table table({"layer", "note"});
    std::vector<Skipped> counted;
    bool any = false;
    for (const LayerOutcome& one : report.layers) {
      std::vector<std::string> rows;
      if (!one.why.empty()) rows.push_back(one.pattern.str() + ": " + one.why);
      for (const std::string& note : one.notes) {
        if (tables_.verbose) {
          rows.push_back(note);
        } else {
          counted.push_back({one.name, note});
        }
      }
      for (const std::string& row : rows) table.add({name_text(one.name), row});
      any |= !rows.empty();
    }
    if (any) print("\n");
    if (any) tables_.print(table);
    if (!counted.empty()) print_paragraph("layers: " + count_reasons(counted));
    if (report.norms_estimated > 0) {
      print_paragraph(fmt::format("batch normalisation estimated again on {} samples: {} tensors",
                                  model_flags_.samples, report.norms_estimated));
    }
  }

  void print_report_json(const ConvertReport& report) const {
    const auto value = [](const std::optional<double>& x) { return x ? Json(*x) : Json(nullptr); };
    Json layers = Json::array();
    for (const LayerOutcome& one : report.layers) {
      Json notes = Json::array();
      for (const std::string& note : one.notes) notes.push_back(note);
      layers.push_back(
          {{"name", one.name},
           {"shape", one.shape},
           {"transposed", one.transposed},
           {"pattern", one.pattern.str()},
           {"why", one.why.empty() ? Json(nullptr) : Json(one.why)},
           {"error_before", value(one.error_before)},
           {"error_after", value(one.error_after)},
           {"retained_l1", one.retained.fraction()},
           {"zeros", one.zeros},
           {"violations", violated(one)},
           {"expected_violations", one.expected_violations},
           {"steps", one.solver ? Json(one.solver->most_steps) : Json(nullptr)},
           {"unfinished_rows", one.solver ? Json(one.solver->unfinished_rows) : Json(nullptr)},
           {"notes", notes},
           {"seconds", one.seconds}});
    }
    print_json(
        {{"method", method_},
         {"support", options_.method.chooses_support() ? Json(support_name(options_.method.support))
                                                       : Json(nullptr)},
         {"pattern", pattern_},
         {"transposable", options_.transposable},
         {"dry_run", dry_run_},
         {"layers", layers},
         {"companions", to_json(report.companions)},
         {"norms_estimated", static_cast<int64_t>(report.norms_estimated)},
         {"skipped", to_json(skipped(report))}});
  }

  OpenModel open_model_;
  std::string in_, out_, pattern_, method_ = "magnitude", support_, calibration_;
  ModelFlags model_flags_;
  int64_t group_ = 8;
  double density_ = 0.0;
  bool sparse_ends_ = false, keep_norms_ = false, dry_run_ = false;
  ConversionOptions options_;
  InPlaceFlag in_place_;
  TensorTableFlags tables_;
  CommonFlags common_;
  NameFilter names_;
};

}  // namespace

CommandEntry convert_command(const OpenModel& open_model) {
  return {
      "convert", "Make a trained model N:M with little or no training",
      "  weft convert model.safetensors sparse.safetensors --pattern 2:4\n"
      "  weft convert model.safetensors sparse.safetensors --pattern 4:8 --method adaprune \\\n"
      "      --calibration inputs.safetensors\n"
      "  weft convert runs/first/model.safetensors sparse.safetensors --pattern 1:4 \\\n"
      "      --method adaprune --model-dir runs/first\n"
      "  weft convert unstructured.safetensors out.safetensors --pattern auto --group 8\n"
      "  weft convert model-folder/ sparse-folder/ --pattern 2:4             with its tokenizer\n"
      "  weft convert big/ out/ --pattern auto --density 0.5 --dry-run\n"
      "\n"
      "Which method: adaprune, if you have a few hundred samples of the inputs of the layers\n"
      "(--calibration, --model-dir): it loses least. sparsegpt is nearly as good in a third of "
      "the\n"
      "time. Without inputs there is magnitude, which loses most; then fine-tune. Cosine to the\n"
      "dense embeddings of a sentence transformer of 22 million weights at 2:4, no training:\n"
      "\n"
      "  magnitude 0.600    wanda 0.766    sparsegpt 0.866    adaprune 0.890\n"
      "\n"
      "magnitude keeps the largest |w|, wanda the largest |w| times the norm of the input; both\n"
      "leave kept weights unchanged. sparsegpt compensates each pruned weight in the columns to\n"
      "its right. adaprune solves least squares for the weights that sparsegpt keeps. absorption\n"
      "(the start of the AdaPrune paper) can do harm. Zero weights stay zero. docs/convert.md\n"
      "shows how to write a calibration file.\n"
      "\n"
      "convert takes the tensors that `weft mask` would mask: hidden layers, but no embeddings,\n"
      "normalisation layers, heads, routers or position biases. Weights stored [ins, outs]\n"
      "(GPT-2's Conv1D, --transposed) become N:M along inputs too.",
      std::make_unique<ConvertCommand>(open_model)};
}

}  // namespace weft::cli
