// weft eval: the model of a finished run on the test samples.
#include "cli/progress.h"
#include "cli/shared.h"
#include "cli/train_work.h"
#include "weft/report/table.h"
#include "weft/train/load_model.h"

namespace weft::cli {

int eval_work(const EvalArguments& arguments) {
  RunParts parts = arguments.weights.empty() ? load_model(arguments.folder, arguments.data)
                                             : load_network(arguments.folder, arguments.weights,
                                                            arguments.data, print_note);
  set_threads(static_cast<int>(
      arguments.threads > 0 ? arguments.threads : std::max<int64_t>(1, parts.options.threads)));
  at::set_num_threads(threads());
  EvalOptions options{parts.options.batch / parts.options.accumulate,
                      arguments.samples < 0 ? parts.options.eval_samples : arguments.samples};
  Progress progress("evaluating", 1000);
  options.progress = [&](int64_t done, int64_t all) {
    progress.reach(static_cast<double>(done) / static_cast<double>(all));
  };
  const EvalReport r = *evaluate(*parts.model, *parts.source, options);
  progress.finish();
  if (arguments.json) {
    print_json({{"run", arguments.folder},
                {"weights", arguments.weights.empty() ? Json(nullptr) : Json(arguments.weights)},
                {"data", parts.options.data},
                {"eval_loss", r.loss},
                {"eval_accuracy", r.accuracy},
                {"eval_samples", r.samples},
                {"seconds", r.seconds}});
    return 0;
  }
  const double units = static_cast<double>(r.samples * parts.source->units_per_sample());
  Table table({"evaluation", ""});
  table.add({"data", parts.options.data});
  table.add({"samples", fmt::format("{}", r.samples)});
  table.add({"accuracy", percent(r.accuracy)});
  table.add({"loss", fmt::format("{:.4f}", r.loss)});
  table.add({"speed", fmt::format("{:.0f} {}/s", units / r.seconds, parts.source->unit())});
  print(table.str());
  return 0;
}

}  // namespace weft::cli
