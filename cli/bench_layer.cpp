// weft bench layer: one layer's training step, recipes against dense.
#include "bench/environment.h"
#include "bench/layer.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "cli/train_work.h"
#include "weft/core/parallel.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

// The phases that the mean in the table is taken over, for recipes whose steps differ.
void print_phases(const std::vector<bench::LayerRecord>& records, const TableFlags& tables) {
  for (const bench::LayerRecord& r : records) {
    if (r.phases.size() == 1) continue;
    std::string text;
    for (const bench::LayerPhase& phase : r.phases) {
      const std::string where = phase.removed < 1.0 ? fmt::format("{:.1f} removed", phase.removed)
                                                    : std::string("all removed");
      text += fmt::format("{}{}: {:.3g} ms at density {:.2f} ({:.0f} %)", text.empty() ? "" : "; ",
                          where, phase.step_ms, phase.density, 100 * phase.share);
    }
    tables.print_lines(
        fmt::format("\n{} {} {}, mean over the sparse phase, with the update of scores: {}\n",
                    r.recipe, r.pattern.str(), r.shape.str(), text));
  }
}

void print_layer_records(const std::vector<bench::LayerRecord>& records, const TableFlags& tables) {
  Table table({"recipe", "pattern", "shape", ">dense ms", ">step ms", ">ratio (spread)", ">mask ms",
               ">pack ms", ">fwd ms", ">bwd_x ms", ">bwd_w ms", ">other ms", ">retained",
               ">bwd kept", "plan"});
  table.can_spare(
      {"bwd kept", "retained", "other ms", "fwd ms", "bwd_x ms", "bwd_w ms", "pack ms", "mask ms"});
  for (const bench::LayerRecord& r : records) {
    const auto ms = [](double value) { return fmt::format("{:.3g}", value); };
    table.add({r.recipe, r.pattern.str(), r.shape.str(), ms(r.times.dense_ms), ms(r.times.step_ms),
               fmt::format("{:.2f} ({:.2f}-{:.2f})", r.times.ratio.median, r.times.ratio.low,
                           r.times.ratio.high),
               ms(r.times.mask_ms), ms(r.times.pack_ms), ms(r.times.fwd_ms), ms(r.times.bwd_x_ms),
               ms(r.times.bwd_w_ms), ms(r.times.other_ms), fmt::format("{:.3f}", r.retained),
               fmt::format("{:.3f}", r.backward_kept), r.plan});
  }
  tables.print(table);
  print_phases(records, tables);
  const bench::Environment where = bench::environment();
  tables.print_lines(fmt::format("\nplan: fwd/bwd_x/bwd_w. {}, {}, {}, {}, commit {}\n", where.cpu,
                                 where.isa, threads_text(where.threads), where.compiler,
                                 where.commit));
}

void print_layer_records_json(const std::vector<bench::LayerRecord>& records) {
  const bench::Environment where = bench::environment();
  Json list = Json::array();
  for (const bench::LayerRecord& r : records) {
    Json phases = Json::array();
    for (const bench::LayerPhase& phase : r.phases) {
      phases.push_back({{"share", phase.share},
                        {"removed", phase.removed},
                        {"density", phase.density},
                        {"step_ms", phase.step_ms}});
    }
    list.push_back({{"recipe", r.recipe},
                    {"pattern", r.pattern.str()},
                    {"tokens", r.shape.tokens},
                    {"ins", r.shape.ins},
                    {"outs", r.shape.outs},
                    {"threads", where.threads},
                    {"isa", where.isa},
                    {"dense_ms", r.times.dense_ms},
                    {"sparse_ms", r.times.step_ms},
                    {"ratio", r.times.ratio.median},
                    {"ratio_spread", Json{r.times.ratio.low, r.times.ratio.high}},
                    {"mask_ms", r.times.mask_ms},
                    {"pack_ms", r.times.pack_ms},
                    {"fwd_ms", r.times.fwd_ms},
                    {"bwd_x_ms", r.times.bwd_x_ms},
                    {"bwd_w_ms", r.times.bwd_w_ms},
                    {"other_ms", r.times.other_ms},
                    {"plan", r.plan},
                    {"retained", r.retained},
                    {"backward_kept", r.backward_kept},
                    {"phases", phases},
                    {"rounds", r.rounds},
                    {"cpu", where.cpu},
                    {"compiler", where.compiler},
                    {"commit", where.commit}});
  }
  print_json(list);
}

}  // namespace

int bench_layer_work(const BenchLayerArguments& arguments) {
  if (arguments.threads > 0) set_threads(static_cast<int>(arguments.threads));
  bench::LayerPlanToBench plan;
  for (const std::string& text : arguments.shapes) plan.shapes.push_back(LayerShape::parse(text));
  for (const std::string& text : arguments.patterns) plan.patterns.push_back(Pattern::parse(text));
  plan.recipes = arguments.recipes;
  plan.mode = parse_plan_mode(arguments.plan);
  plan.rounds = static_cast<int>(arguments.rounds);
  Progress progress("measuring", 1000);
  const auto records = bench::bench_layer(plan, [&](double fraction) { progress.reach(fraction); });
  progress.finish();
  arguments.json ? print_layer_records_json(records)
                 : print_layer_records(records, arguments.tables);
  return 0;
}

}  // namespace weft::cli
