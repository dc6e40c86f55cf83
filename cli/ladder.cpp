// weft ladder: what each structure would keep of the weights of a checkpoint, best first.
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/prune/compare_structures.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class LadderCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("file", file_, "Checkpoint: .safetensors, .index.json, or a folder");
    names_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    Progress progress("solving");
    const StructuresReport report =
        compare_structures(file_, names_.expressions(), listener(progress));
    progress.finish();
    common_.json ? print_report_json(report) : print_report(report);
    return 0;
  }

 private:
  void print_report(const StructuresReport& report) const {
    Table table({"structure", "solver", ">retained L1", ">mask bits/weight"});
    const auto bits = [](double log2, const Diversity& of) {
      return fmt::format("{:.3f}", log2 / static_cast<double>(of.weights));
    };
    const Diversity& any = report.rungs.front().diversity;
    table.add({"unstructured 50%", "-", fmt::format("{:.4f}", report.unstructured.fraction()),
               bits(any.log2_unstructured, any)});
    for (const StructureRung& rung : report.rungs) {
      const bool transposable = rung.solver->transposable;
      table.add({rung.pattern.str() + (transposable ? " transposable" : ""),
                 std::string(rung.solver->name), fmt::format("{:.4f}", rung.retained.fraction()),
                 bits(transposable ? rung.diversity.log2_transposable : rung.diversity.log2_nm,
                      rung.diversity)});
    }
    print(table.str(kTableColumns));
    print(fmt::format("\n{}: {} tensors, {} weights; {} tensors skipped\n", file_, report.tensors,
                      any.weights, report.skipped.size()));
  }

  void print_report_json(const StructuresReport& report) const {
    Json list = Json::array();
    list.push_back({{"structure", "unstructured"},
                    {"transposable", false},
                    {"solver", nullptr},
                    {"retained_l1", report.unstructured.fraction()}});
    for (const StructureRung& rung : report.rungs) {
      list.push_back({{"structure", rung.pattern.str()},
                      {"transposable", rung.solver->transposable},
                      {"solver", rung.solver->name},
                      {"retained_l1", rung.retained.fraction()}});
    }
    print_json({{"file", file_}, {"ladder", list}, {"skipped", to_json(skipped(report.skipped))}});
  }

  std::string file_;
  CommonFlags common_;
  NameFilter names_;
};

}  // namespace

CommandEntry ladder_command() {
  return {
      "ladder", "Show how much magnitude each structure would keep, best first",
      "  weft ladder model.safetensors\n"
      "  weft ladder model.safetensors --include 'mlp' --json\n"
      "\n"
      "Every structure keeps half of the weights, or a little less for the greedy solvers and at\n"
      "the edges. Memory: about three times the largest tensor.",
      std::make_unique<LadderCommand>()};
}

}  // namespace weft::cli
