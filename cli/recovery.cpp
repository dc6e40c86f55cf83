// weft recovery: what a conversion costs a trained network, and what each step gives back.
#include "weft/train/recovery.h"

#include "bench/environment.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "cli/train_work.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

std::string below(const RecoveryReport& report, const RecoveryRung& rung, RecoveryStep step) {
  if (rung.step <= step) return "-";
  return fmt::format("{}/{}", report.layers_below(rung, step), rung.errors.size());
}

void print_recovery(const RecoveryReport& report, const RecoveryArguments& arguments) {
  Table table({"pattern", "step", ">mean error", ">worst error", ">below one-shot",
               ">below absorption", ">eval loss", ">accuracy", ">recovered"});
  table.can_spare({"below absorption", "below one-shot", "worst error"});
  table.add({"-", "dense", "-", "-", "-", "-", fmt::format("{:.4f}", report.dense.loss),
             percent(report.dense.accuracy), "-"});
  for (const RecoveryRung& rung : report.rungs) {
    const bool one_shot = rung.step == RecoveryStep::kMagnitude;
    table.add({rung.pattern.str(), std::string(step_name(rung.step)),
               fmt::format("{:.5f}", rung.mean_error()), fmt::format("{:.5f}", rung.worst_error()),
               below(report, rung, RecoveryStep::kMagnitude),
               below(report, rung, RecoveryStep::kAbsorption),
               fmt::format("{:.4f}", rung.eval.loss), percent(rung.eval.accuracy),
               one_shot ? "-" : fmt::format("{:.0f}%", 100 * report.recovered(rung))});
  }
  const bench::Environment on = bench::environment();
  arguments.tables.print(table);
  arguments.tables.print_lines(fmt::format(
      "\n{} on {}{}, {} calibration samples, {} test samples; error: of layer outputs;\n"
      "below: layers with a smaller error than that step; recovered: share of the accuracy that\n"
      "magnitude loses. {}, {}, commit {}\n",
      report.run.model, report.run.data, arguments.transposable ? ", transposable" : "",
      report.samples, report.dense.samples, on.cpu, on.isa, on.commit));
}

void print_recovery_json(const RecoveryReport& report, const RecoveryArguments& arguments) {
  Json list = Json::array();
  for (const RecoveryRung& rung : report.rungs) {
    list.push_back({{"pattern", rung.pattern.str()},
                    {"step", step_name(rung.step)},
                    {"transposable", arguments.transposable},
                    {"errors", rung.errors},
                    {"eval_loss", rung.eval.loss},
                    {"eval_accuracy", rung.eval.accuracy},
                    {"recovered", report.recovered(rung)}});
  }
  print_json(
      {{"run", arguments.model.folder},
       {"samples", arguments.model.samples},
       {"dense", {{"eval_loss", report.dense.loss}, {"eval_accuracy", report.dense.accuracy}}},
       {"rungs", list}});
}

}  // namespace

int recovery_work(const RecoveryArguments& arguments) {
  arguments.common.apply();
  RecoveryOptions options;
  options.run = arguments.model.folder;
  options.data = arguments.model.data;
  options.samples = arguments.model.samples;
  options.patterns.clear();
  for (const std::string& text : arguments.patterns) {
    options.patterns.push_back(Pattern::parse(text));
  }
  options.transposable = arguments.transposable;
  options.sparse_ends = arguments.sparse_ends;
  Progress progress("converting");
  const RecoveryReport report = measure_recovery(options, listener(progress));
  progress.finish();
  if (arguments.common.json) {
    print_recovery_json(report, arguments);
  } else {
    print_recovery(report, arguments);
  }
  return 0;
}

}  // namespace weft::cli
