// weft bench layer: one layer's training step, recipes against dense.
#include "bench/environment.h"
#include "bench/layer.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "cli/train_commands.h"
#include "weft/core/parallel.h"
#include "weft/report/table.h"
#include "weft/train/recipes/recipe.h"

namespace weft::cli {
namespace {

class BenchLayerCommand : public Command {
 public:
  BenchLayerCommand() {
    for (const Recipe& recipe : recipes()) {
      if (recipe.name != "dense") recipes_.push_back(recipe.name);
    }
  }

  void declare(Flags& flags) override {
    flags.texts("--shape", "TOKENSxINSxOUTS", shapes_, "Layers to run",
                problem_in([](const std::string& text) { LayerShape::parse(text); }));
    flags.texts("--recipe", "NAME[+PART=VALUE]", recipes_, "Recipes to run",
                problem_in([](const std::string& text) { Recipe::parse(text); }));
    flags.texts("--pattern", "N:M[xS]", patterns_, "Patterns to run",
                problem_in([](const std::string& text) { Pattern::parse(text); }));
    flags.text("--plan", "auto|dense|sparse", plan_, "Who decides how products are computed",
               problem_in([](const std::string& text) { parse_plan_mode(text); }));
    flags.integer("--rounds", rounds_, 1, 30, "Rounds to take the median of");
    flags.integer("--threads", threads_, 0, kMaxThreads, "Threads; 0 takes all");
    flags.flag("--json", json_, "Print JSON");
  }

  int run() override {
    if (threads_ > 0) set_threads(static_cast<int>(threads_));
    bench::LayerPlanToBench plan;
    for (const std::string& text : shapes_) plan.shapes.push_back(LayerShape::parse(text));
    for (const std::string& text : patterns_) plan.patterns.push_back(Pattern::parse(text));
    plan.recipes = recipes_;
    for (const std::string& recipe : recipes_) require_use(recipe, plan.patterns);
    plan.mode = parse_plan_mode(plan_);
    plan.rounds = static_cast<int>(rounds_);
    Progress progress("measuring", 1000);
    const auto records =
        bench::bench_layer(plan, [&](double fraction) { progress.reach(fraction); });
    progress.finish();
    json_ ? report_json(records) : report(records);
    return 0;
  }

 private:
  // Left out at some patterns is fine; at all of them, the flag is a mistake.
  static void require_use(const std::string& recipe, const std::vector<Pattern>& patterns) {
    std::string reason;
    for (const Pattern& pattern : patterns) {
      try {
        Recipe::parse(recipe).check(pattern);
        return;
      } catch (const Error& error) {
        reason = error.what();
      }
    }
    throw UsageError(reason);
  }

  static void report(const std::vector<bench::LayerRecord>& records) {
    Table table({"recipe", "pattern", "shape", ">dense ms", ">step ms", ">ratio (spread)",
                 ">mask ms", ">pack ms", ">fwd ms", ">bwd_x ms", ">bwd_w ms", ">other ms",
                 ">retained", ">bwd kept", "plan"});
    for (const bench::LayerRecord& r : records) {
      const auto ms = [](double value) { return fmt::format("{:.3g}", value); };
      table.add({r.recipe, r.pattern.str(), r.shape.str(), ms(r.times.dense_ms),
                 ms(r.times.step_ms),
                 fmt::format("{:.2f} ({:.2f}-{:.2f})", r.times.ratio.median, r.times.ratio.low,
                             r.times.ratio.high),
                 ms(r.times.mask_ms), ms(r.times.pack_ms), ms(r.times.fwd_ms), ms(r.times.bwd_x_ms),
                 ms(r.times.bwd_w_ms), ms(r.times.other_ms), fmt::format("{:.3f}", r.retained),
                 fmt::format("{:.3f}", r.backward_kept), r.plan});
    }
    print(table.str());
    const bench::Environment where = bench::environment();
    print(fmt::format("\nplan: fwd/bwd_x/bwd_w. {}, {}, {}, {}, commit {}\n", where.cpu, where.isa,
                      threads_text(where.threads), where.compiler, where.commit));
  }

  static void report_json(const std::vector<bench::LayerRecord>& records) {
    const bench::Environment where = bench::environment();
    Json list = Json::array();
    for (const bench::LayerRecord& r : records) {
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
                      {"cpu", where.cpu},
                      {"compiler", where.compiler},
                      {"commit", where.commit}});
    }
    print_json(list);
  }

  std::vector<std::string> shapes_ = {"2048x768x3072"};
  std::vector<std::string> recipes_;
  std::vector<std::string> patterns_ = {"2:4"};
  std::string plan_ = "auto";
  int64_t rounds_ = 5;
  int64_t threads_ = 0;
  bool json_ = false;
};

}  // namespace

CommandEntry bench_layer_command() {
  return {kBenchLayer.name, kBenchLayer.description,
          "  weft bench layer\n"
          "  weft bench layer --recipe t-sr-ste --pattern 1:4 --pattern 2:4x2 --threads 1\n"
          "  weft bench layer --recipe s-ste+backward=bi-mask --shape 2048x1024x4096 --json",
          std::make_unique<BenchLayerCommand>()};
}

}  // namespace weft::cli
