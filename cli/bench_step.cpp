// weft bench step: whole training steps of a network, recipes against dense.
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
  words.insert(words.end(), {"--model", arguments.model});
  add("--width", arguments.width);
  add("--tokens", arguments.block.tokens);
  add("--context", arguments.block.context);
  add("--hidden", arguments.block.hidden);
  add("--heads", arguments.block.heads);
  add("--images", arguments.resnet.images);
  add("--size", arguments.resnet.size);
  add("--threads", arguments.threads);
  return std::stod(output_of_self(words, stop));
}

// Peak resident memory of each record against dense, each in a process of its own.
std::vector<double> step_memory(const BenchStepArguments& arguments,
                                const std::vector<bench::StepRecord>& records,
                                const StopSignal& stop, Progress& progress) {
  const double dense = peak_of(arguments, "dense", "2:4", stop);
  std::vector<double> ratios;
  for (const bench::StepRecord& one : records) {
    ratios.push_back(peak_of(arguments, one.subject.recipe, one.subject.pattern.str(), stop) /
                     dense);
    progress.reach(0.7 +
                   0.3 * static_cast<double>(ratios.size()) / static_cast<double>(records.size()));
  }
  return ratios;
}

// What was measured, for people.
std::string network_text(const BenchStepArguments& arguments) {
  const bench::StepShape shape = arguments.shape();
  if (const auto* block = std::get_if<bench::BlockShape>(&shape)) {
    return fmt::format("A block of width {} and {}, {} tokens in sequences of {}", block->width,
                       block->hidden, block->tokens, block->context);
  }
  const auto& resnet = std::get<bench::ResnetShape>(shape);
  return fmt::format("ResNet-18 of width {}, {} images of {} x {}", resnet.width, resnet.images,
                     resnet.size, resnet.size);
}

// lbc removes first and then keeps N:M: dense time over that of a run of both.
std::string whole_runs(const bench::StepRecords& found) {
  std::string lines;
  for (size_t i = 0; i + 1 < found.records.size(); ++i) {
    const bench::StepRecord &removing = found.records[i], &after = found.records[i + 1];
    if (!removing.subject.removing) continue;
    const Recipe recipe = Recipe::parse(after.subject.recipe);
    const double share = recipe.schedule.removal_end;
    lines += fmt::format(
        "{} {} over a whole run, of which it removes for {:.0f} % (measured at its beginning): "
        "{:.2f}\n",
        after.subject.recipe, after.subject.pattern.str(), 100 * share,
        found.dense_ms / (share * removing.times.step_ms + (1 - share) * after.times.step_ms));
  }
  return lines.empty() ? "" : "\n" + lines;
}

void print_step_records(const BenchStepArguments& arguments, const bench::StepRecords& found,
                        const std::vector<double>& memory, int torch_threads) {
  Table table({"recipe", "pattern", ">dense ms", ">step ms", ">ratio (spread)", ">mask %",
               ">pack %", ">fwd ms", ">bwd_x ms", ">bwd_w ms", ">other ms", ">memory", "plan"});
  table.can_spare({"other ms", "fwd ms", "bwd_x ms", "bwd_w ms", "memory", "pack %", "mask %"});
  for (size_t i = 0; i < found.records.size(); ++i) {
    const bench::StepRecord& r = found.records[i];
    const auto ms = [](double value) { return fmt::format("{:.0f}", value); };
    table.add({r.subject.name(), r.subject.pattern.str(), ms(r.times.dense_ms), ms(r.times.step_ms),
               fmt::format("{:.2f} ({:.2f}-{:.2f})", r.times.ratio.median, r.times.ratio.low,
                           r.times.ratio.high),
               fmt::format("{:.1f}", 100 * r.times.mask_ms / r.times.step_ms),
               fmt::format("{:.1f}", 100 * r.times.pack_ms / r.times.step_ms), ms(r.times.fwd_ms),
               ms(r.times.bwd_x_ms), ms(r.times.bwd_w_ms), ms(r.times.other_ms),
               memory.empty() ? "-" : fmt::format("{:.2f}", memory[i]), r.plan});
  }
  arguments.tables.print(table);
  if (found.dense_fp32_ms) {
    std::string ratios;
    for (const bench::StepRecord& r : found.records) {
      ratios += fmt::format(", {} {} {:.2f}", r.subject.name(), r.subject.pattern.str(),
                            *found.dense_fp32_ms / r.times.step_ms);
    }
    arguments.tables.print_lines(
        fmt::format("\ndense in fp32: {:.0f} ms; speed relative to it: dense {:.2f}{}\n",
                    *found.dense_fp32_ms, *found.dense_fp32_ms / found.dense_ms, ratios));
  }
  if (found.plain_ms) {
    arguments.tables.print_lines(fmt::format(
        "\nplain libtorch as it starts, {}: {:.0f} ms, weft's dense step is {:.2f} times "
        "as fast;\nwith {}: {:.0f} ms, {:.2f} times\n",
        threads_text(torch_threads), *found.plain_ms, *found.plain_ms / found.dense_ms,
        threads_text(threads()), *found.plain_all_threads_ms,
        *found.plain_all_threads_ms / found.dense_ms));
  }
  arguments.tables.print_lines(whole_runs(found));
  const bench::Environment where = bench::environment();
  arguments.tables.print_lines(fmt::format(
      "\n{}, AdamW, {}. memory: peak resident set / that of dense.\nplan: fwd/bwd_x/bwd_w of {}. "
      "{}, {}, {}, {}, commit {}\n",
      network_text(arguments), arguments.precision, bench::planned_layer(arguments.shape()),
      where.cpu, where.isa, threads_text(where.threads), where.compiler, where.commit));
}

void add_shape(const bench::StepShape& shape, Json& record) {
  if (const auto* block = std::get_if<bench::BlockShape>(&shape)) {
    record["tokens"] = block->tokens;
    record["width"] = block->width;
    record["hidden"] = block->hidden;
    record["context"] = block->context;
    return;
  }
  const auto& resnet = std::get<bench::ResnetShape>(shape);
  record["images"] = resnet.images;
  record["size"] = resnet.size;
  record["width"] = resnet.width;
}

void print_step_records_json(const BenchStepArguments& arguments, const bench::StepRecords& found,
                             const std::vector<double>& memory, int torch_threads) {
  const bench::Environment where = bench::environment();
  Json list = Json::array();
  for (size_t i = 0; i < found.records.size(); ++i) {
    const bench::StepRecord& r = found.records[i];
    Json record{{"model", arguments.model},
                {"recipe", r.subject.recipe},
                {"removing", r.subject.removing},
                {"pattern", r.subject.pattern.str()},
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
                {"threads", where.threads},
                {"isa", where.isa},
                {"cpu", where.cpu},
                {"compiler", where.compiler},
                {"commit", where.commit}};
    add_shape(arguments.shape(), record);
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
  options.shape = arguments.shape();
  options.recipes = arguments.all_recipes();
  for (const std::string& text : arguments.patterns)
    options.patterns.push_back(Pattern::parse(text));
  options.mode = parse_plan_mode(arguments.plan);
  options.precision = parse_precision(arguments.precision);
  options.rounds = static_cast<int>(arguments.rounds);
  options.torch_threads = torch_threads;
  options.plain = !arguments.no_plain;
  if (arguments.only_memory) {
    bench::take_steps(options.shape, {options.recipes[0], options.patterns[0]}, options.mode,
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
      memory = step_memory(arguments, found.records, stop, progress);
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
