// weft bench step: whole training steps of a transformer block, recipes against dense.
#include <ATen/Parallel.h>

#include "bench/environment.h"
#include "bench/step.h"
#include "cli/child_run.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "cli/train_work.h"
#include "weft/report/table.h"
#include "weft/run/memory.h"

namespace weft::cli {
namespace {

double peak_of(const BenchStepArguments& arguments, const std::string& recipe,
               const std::string& pattern, const StopSignal& stop) {
  std::vector<std::string> words = {
      "bench",  "step",         "--only-memory", "--recipe",         recipe, "--pattern", pattern,
      "--plan", arguments.plan, "--precision",   arguments.precision};
  const auto add = [&](const char* flag, int64_t value) {
    words.insert(words.end(), {flag, fmt::format("{}", value)});
  };
  add("--tokens", arguments.shape.tokens);
  add("--context", arguments.shape.context);
  add("--width", arguments.shape.width);
  add("--hidden", arguments.shape.hidden);
  add("--heads", arguments.shape.heads);
  add("--threads", arguments.threads);
  return std::stod(output_of_self(words, stop));
}

// Peak resident memory of each record against dense, each in a process of its own.
std::vector<double> step_memory(const BenchStepArguments& arguments, const StopSignal& stop,
                                Progress& progress) {
  const double dense = peak_of(arguments, "dense", "2:4", stop);
  std::vector<double> ratios;
  const double all = static_cast<double>(arguments.recipes.size() * arguments.patterns.size());
  for (const std::string& recipe : arguments.recipes) {
    for (const std::string& pattern : arguments.patterns) {
      ratios.push_back(peak_of(arguments, recipe, pattern, stop) / dense);
      progress.reach(0.7 + 0.3 * static_cast<double>(ratios.size()) / all);
    }
  }
  return ratios;
}

void print_step_records(const BenchStepArguments& arguments, const bench::StepRecords& found,
                        const std::vector<double>& memory, int torch_threads) {
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
    print(fmt::format("\ndense in fp32: {:.0f} ms; speed relative to it: dense {:.2f}{}\n",
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
  if (std::ranges::any_of(arguments.recipes, [](const std::string& recipe) {
        return Recipe::parse(recipe).reads("removal_end");
      })) {
    print("\nlbc: steps after the removal; earlier ones are slower (see weft bench layer)\n");
  }
  const bench::Environment where = bench::environment();
  print(fmt::format(
      "\nA block of width {} and {}, {} tokens in sequences of {}, AdamW, {}. memory: "
      "peak resident set / that of dense.\nplan: fwd/bwd_x/bwd_w of fc1. {}, {}, {}, {}, "
      "commit {}\n",
      arguments.shape.width, arguments.shape.hidden, arguments.shape.tokens,
      arguments.shape.context, arguments.precision, where.cpu, where.isa,
      threads_text(where.threads), where.compiler, where.commit));
}

void print_step_records_json(const BenchStepArguments& arguments, const bench::StepRecords& found,
                             const std::vector<double>& memory, int torch_threads) {
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
                {"precision", arguments.precision},
                {"tokens", arguments.shape.tokens},
                {"width", arguments.shape.width},
                {"hidden", arguments.shape.hidden},
                {"context", arguments.shape.context},
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

}  // namespace

int bench_step_work(const BenchStepArguments& arguments) {
  if (arguments.processes > 1) return bench_ranks_work(arguments);
  // Asked before anything sets them; and what torch starts with, it sets for OpenMP and so for us.
  const int all = threads();
  const int torch_threads = at::get_num_threads();
  set_threads(arguments.threads > 0 ? static_cast<int>(arguments.threads) : all);
  bench::StepOptions options;
  options.shape = arguments.shape;
  options.recipes = arguments.recipes;
  for (const std::string& text : arguments.patterns)
    options.patterns.push_back(Pattern::parse(text));
  options.mode = parse_plan_mode(arguments.plan);
  options.precision = parse_precision(arguments.precision);
  options.rounds = static_cast<int>(arguments.rounds);
  options.torch_threads = torch_threads;
  options.plain = !arguments.no_plain;
  if (arguments.only_memory) {
    bench::take_steps(options.shape, options.recipes[0], options.patterns[0], options.mode,
                      options.precision, 2);
    print(fmt::format("{}\n", peak_resident_bytes()));
    return 0;
  }
  Progress progress("measuring", 1000);
  const bench::StepRecords found =
      bench::bench_step(options, [&](double fraction) { progress.reach(0.7 * fraction); });
  std::vector<double> memory;
  if (!arguments.no_memory) {
    const StopSignal stop;  // no child process may be left running
    try {
      memory = step_memory(arguments, stop, progress);
    } catch (const Stopped&) {
      progress.finish();
      stop.end_program("stopped: no results were written");
    }
  }
  progress.finish();
  arguments.json ? print_step_records_json(arguments, found, memory, torch_threads)
                 : print_step_records(arguments, found, memory, torch_threads);
  return 0;
}

}  // namespace weft::cli
