// weft bench step: whole training steps of a transformer block, recipes against dense.
#include <ATen/Parallel.h>

#include "bench/environment.h"
#include "bench/step.h"
#include "cli/child_run.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "cli/train_commands.h"
#include "weft/report/table.h"
#include "weft/train/recipes/recipe.h"
#include "weft/train/run/peak_memory.h"

namespace weft::cli {
namespace {

class BenchStepCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.texts("--recipe", "NAME[+PART=VALUE]", recipes_, "Recipes to run (default: t-sr-ste)",
                problem_in([](const std::string& text) { Recipe::parse(text); }));
    flags.texts("--pattern", "N:M[xS]", patterns_,
                "Patterns to run (default: 2:4, 2:4x2, 1:4, 1:8x2)",
                problem_in([](const std::string& text) { Pattern::parse(text); }));
    flags.integer("--tokens", shape_.tokens, 1, 1 << 24, "Tokens of a step");
    flags.integer("--context", shape_.context, 1, 1 << 20, "Tokens of a sequence");
    flags.integer("--width", shape_.width, 1, 1 << 16, "Width of the block");
    flags.integer("--hidden", shape_.hidden, 1, 1 << 18, "Width of its feed-forward part");
    flags.integer("--heads", shape_.heads, 1, 1 << 10, "Heads of attention");
    flags.text("--plan", "auto|dense|sparse", plan_, "Who decides how products are computed",
               problem_in([](const std::string& text) { parse_plan_mode(text); }));
    flags.text("--precision", "fp32|bf16", precision_,
               "Of operands and activations; in bf16 dense is bf16 too, and fp32 beside",
               problem_in([](const std::string& text) { parse_precision(text); }));
    flags.integer("--rounds", rounds_, 1, 100, "Rounds to take the median of");
    flags.integer("--threads", threads_, 0, kMaxThreads, "Threads; 0 takes all");
    flags.flag("--no-plain", no_plain_, "Leave plain libtorch out");
    flags.flag("--no-memory", no_memory_, "Leave memory out");
    flags.flag("--only-memory", only_memory_,
               "Take two steps by the one recipe and pattern given and print the peak of memory");
    flags.flag("--json", json_, "Print JSON");
  }

  int run() override {
    // Asked before anything sets them; and what torch starts with, it sets for OpenMP and so for
    // us.
    const int all = threads();
    const int torch_threads = at::get_num_threads();
    set_threads(threads_ > 0 ? static_cast<int>(threads_) : all);
    if (recipes_.empty()) recipes_ = {"t-sr-ste"};
    if (patterns_.empty()) patterns_ = {"2:4", "2:4x2", "1:4", "1:8x2"};
    bench::StepPlan plan;
    plan.shape = shape_;
    plan.recipes = recipes_;
    for (const std::string& text : patterns_) plan.patterns.push_back(Pattern::parse(text));
    plan.mode = parse_plan_mode(plan_);
    plan.precision = parse_precision(precision_);
    plan.rounds = static_cast<int>(rounds_);
    plan.torch_threads = torch_threads;
    plan.plain = !no_plain_;
    check_usage(plan);
    if (only_memory_) {
      bench::take_steps(shape_, recipes_[0], plan.patterns[0], plan.mode, plan.precision, 2);
      print(fmt::format("{}\n", peak_resident_bytes()));
      return 0;
    }
    Progress progress("measuring", 1000);
    const bench::StepRecords found =
        bench::bench_step(plan, [&](double fraction) { progress.reach(0.7 * fraction); });
    const std::vector<double> memory = no_memory_ ? std::vector<double>() : memory_of(progress);
    progress.finish();
    json_ ? report_json(found, memory, torch_threads) : report(found, memory, torch_threads);
    return 0;
  }

 private:
  void check_usage(const bench::StepPlan& plan) const {
    try {
      for (const std::string& recipe : plan.recipes) {
        for (const Pattern& pattern : plan.patterns) Recipe::parse(recipe).check(pattern);
      }
      WEFT_CHECK(shape_.tokens % shape_.context == 0, "{} tokens are not whole sequences of {}",
                 shape_.tokens, shape_.context);
      WEFT_CHECK(shape_.width % shape_.heads == 0, "a width of {} cannot be cut into {} heads",
                 shape_.width, shape_.heads);
    } catch (const Error& error) {
      throw UsageError(error.what());
    }
  }

  // Peak resident memory of each record against dense, each in a process of its own.
  std::vector<double> memory_of(Progress& progress) const {
    const double dense = peak_of("dense", "2:4");
    std::vector<double> ratios;
    const double all = static_cast<double>(recipes_.size() * patterns_.size());
    for (const std::string& recipe : recipes_) {
      for (const std::string& pattern : patterns_) {
        ratios.push_back(peak_of(recipe, pattern) / dense);
        progress.reach(0.7 + 0.3 * static_cast<double>(ratios.size()) / all);
      }
    }
    return ratios;
  }

  double peak_of(const std::string& recipe, const std::string& pattern) const {
    std::vector<std::string> arguments = {"bench", "step",        "--only-memory", "--recipe",
                                          recipe,  "--pattern",   pattern,         "--plan",
                                          plan_,   "--precision", precision_};
    const auto add = [&](const char* flag, int64_t value) {
      arguments.insert(arguments.end(), {flag, fmt::format("{}", value)});
    };
    add("--tokens", shape_.tokens);
    add("--context", shape_.context);
    add("--width", shape_.width);
    add("--hidden", shape_.hidden);
    add("--heads", shape_.heads);
    add("--threads", threads_);
    return std::stod(output_of_self(arguments));
  }

  void report(const bench::StepRecords& found, const std::vector<double>& memory,
              int torch_threads) const {
    Table table({"recipe", "pattern", ">dense ms", ">step ms", ">ratio (spread)", ">mask %",
                 ">pack %", ">fwd ms", ">bwd_x ms", ">bwd_w ms", ">other ms", ">memory", "plan"});
    for (size_t i = 0; i < found.records.size(); ++i) {
      const bench::StepRecord& r = found.records[i];
      const auto ms = [](double value) { return fmt::format("{:.0f}", value); };
      table.add({r.recipe, r.pattern.str(), ms(r.times.dense_ms), ms(r.times.step_ms),
                 fmt::format("{:.2f} ({:.2f}-{:.2f})", r.times.ratio.median, r.times.ratio.low,
                             r.times.ratio.high),
                 fmt::format("{:.1f}", 100 * r.times.mask_ms / r.times.step_ms),
                 fmt::format("{:.1f}", 100 * r.times.pack_ms / r.times.step_ms), ms(r.times.fwd_ms),
                 ms(r.times.bwd_x_ms), ms(r.times.bwd_w_ms), ms(r.times.other_ms),
                 memory.empty() ? "-" : fmt::format("{:.2f}", memory[i]), r.plan});
    }
    print(table.str());
    if (found.dense_fp32_ms) {
      std::string ratios;
      for (const bench::StepRecord& r : found.records) {
        ratios += fmt::format(", {} {} {:.2f}", r.recipe, r.pattern.str(),
                              *found.dense_fp32_ms / r.times.step_ms);
      }
      print(fmt::format("\ndense in fp32: {:.0f} ms; times as fast as that: dense {:.2f}{}\n",
                        *found.dense_fp32_ms, *found.dense_fp32_ms / found.dense_ms, ratios));
    }
    if (found.plain_ms) {
      print(fmt::format(
          "\nplain libtorch as it starts, {}: {:.0f} ms, weft's dense step is {:.2f} times "
          "as fast;\nwith {}: {:.0f} ms, {:.2f} times\n",
          threads_text(torch_threads), *found.plain_ms, *found.plain_ms / found.dense_ms,
          threads_text(threads()), *found.plain_all_threads_ms,
          *found.plain_all_threads_ms / found.dense_ms));
    }
    const bench::Environment where = bench::environment();
    print(fmt::format(
        "\nA block of width {} and {}, {} tokens in sequences of {}, AdamW, {}. memory: "
        "peak resident against dense.\nplan: fwd/bwd_x/bwd_w of fc1. {}, {}, {}, {}, "
        "commit {}\n",
        shape_.width, shape_.hidden, shape_.tokens, shape_.context, precision_, where.cpu,
        where.isa, threads_text(where.threads), where.compiler, where.commit));
  }

  void report_json(const bench::StepRecords& found, const std::vector<double>& memory,
                   int torch_threads) const {
    const bench::Environment where = bench::environment();
    Json list = Json::array();
    for (size_t i = 0; i < found.records.size(); ++i) {
      const bench::StepRecord& r = found.records[i];
      Json record{{"recipe", r.recipe},
                  {"pattern", r.pattern.str()},
                  {"ratio", r.times.ratio.median},
                  {"ratio_spread", Json{r.times.ratio.low, r.times.ratio.high}},
                  {"mask_share", r.times.mask_ms / r.times.step_ms},
                  {"pack_share", r.times.pack_ms / r.times.step_ms},
                  {"dense_ms", r.times.dense_ms},
                  {"step_ms", r.times.step_ms},
                  {"fwd_ms", r.times.fwd_ms},
                  {"bwd_x_ms", r.times.bwd_x_ms},
                  {"bwd_w_ms", r.times.bwd_w_ms},
                  {"other_ms", r.times.other_ms},
                  {"plan", r.plan},
                  {"precision", precision_},
                  {"tokens", shape_.tokens},
                  {"width", shape_.width},
                  {"hidden", shape_.hidden},
                  {"context", shape_.context},
                  {"threads", where.threads},
                  {"isa", where.isa},
                  {"cpu", where.cpu},
                  {"compiler", where.compiler},
                  {"commit", where.commit}};
      if (!memory.empty()) record["rss_ratio"] = memory[i];
      if (found.dense_fp32_ms) {
        record["dense_fp32_ms"] = *found.dense_fp32_ms;
        record["ratio_over_dense_fp32"] = *found.dense_fp32_ms / r.times.step_ms;
      }
      if (found.plain_ms) {
        record["plain_torch_ms"] = *found.plain_ms;
        record["plain_torch_threads"] = torch_threads;
        record["dense_over_plain_torch"] = *found.plain_ms / r.times.dense_ms;
        record["plain_torch_all_threads_ms"] = *found.plain_all_threads_ms;
      }
      list.push_back(std::move(record));
    }
    print_json(list);
  }

  bench::BlockShape shape_;
  std::vector<std::string> recipes_, patterns_;
  std::string plan_ = "auto", precision_ = "fp32";
  int64_t rounds_ = 4, threads_ = 0;
  bool no_plain_ = false, no_memory_ = false, only_memory_ = false, json_ = false;
};

}  // namespace

CommandEntry bench_step_command() {
  return {kBenchStep.name, kBenchStep.description,
          "  weft bench step\n"
          "  weft bench step --recipe t-sr-ste --recipe s-ste --pattern 2:4 --json\n"
          "  weft bench step --precision bf16 --pattern 2:4x16 --pattern 2:4x32",
          std::make_unique<BenchStepCommand>()};
}

}  // namespace weft::cli
