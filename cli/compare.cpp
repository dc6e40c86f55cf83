// weft compare: recipes and patterns side by side, with several seeds.
#include "weft/train/compare.h"
#include "bench/environment.h"
#include "cli/child_run.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "cli/stop_signal.h"
#include "cli/train_work.h"
#include "weft/core/atomic_file.h"
#include "weft/core/text.h"
#include "weft/report/export.h"
#include "weft/report/table.h"
#include "weft/run/found_lambda.h"

namespace weft::cli {
namespace {

class NotePrinter : public TrainerListener {
 public:
  explicit NotePrinter(Progress& progress) : progress_(progress) {}
  void on_note(const std::string& note) override {
    progress_.wipe();
    std::fputs(fmt::format("weft: {}\n", printable(note, 2000)).c_str(), stderr);
  }

 private:
  Progress& progress_;
};

// Peak resident bytes of each row, from a few steps in a process of their own.
std::vector<uint64_t> run_memory(const CompareOptions& options, const CompareResult& result,
                                 const std::string& out, const StopSignal& stop) {
  std::vector<uint64_t> peaks;
  Progress progress("memory", result.rows.size());
  for (const CompareRow& row : result.rows) {
    RunOptions run = options.run;
    run.recipe = row.recipe;
    run.pattern = row.pattern.empty() ? "2:4" : row.pattern;
    run = with_lambda(run, 0.0);  // none is to be found in six steps
    run.steps = 6;
    run.eval_samples = 1;
    peaks.push_back(peak_memory_of(run, std::filesystem::path(out) / "memory", stop));
    progress.add(1);
  }
  return peaks;
}

Json comparison_json(const CompareOptions& options, const CompareResult& result,
                     const std::vector<uint64_t>& memory) {
  const bench::Environment where = bench::environment();
  Json rows = Json::array();
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const CompareRow& r = result.rows[i];
    Json row{{"recipe", r.recipe},
             {"pattern", r.pattern},
             {"mean", r.mean},
             {"sd", r.sd},
             {"runs", r.metrics},
             {"step_ratio", r.step_ratio},
             {"step_ratio_spread", Json{r.ratio_low, r.ratio_high}},
             {"step_ms", 1e3 * r.step_seconds},
             {"steps", r.steps},
             {"train_seconds", r.train_seconds},
             {"density", r.density},
             {"flip_rate", r.flip_rate},
             {"sparse_products", r.products},
             {"file_bytes", r.file_bytes},
             {"check", r.check}};
    if (r.dense_flips) row["dense_flips"] = *r.dense_flips;
    if (!memory.empty()) {
      row["peak_resident_bytes"] = memory[i];
      row["memory_ratio"] =
          static_cast<double>(memory[i]) / static_cast<double>(std::max<uint64_t>(1, memory[0]));
    }
    rows.push_back(std::move(row));
  }
  Json document{{"metric", result.metric},
                {"rows", rows},
                {"options", options.run.to_json()},
                {"seeds", options.seeds},
                {"threads", where.threads},
                {"isa", where.isa},
                {"cpu", where.cpu},
                {"commit", where.commit}};
  if (options.budget > 0.0) document["budget_seconds"] = options.budget;
  return document;
}

void print_comparison(const CompareOptions& options, const Json& document,
                      const TableFlags& tables) {
  const bool loss = document["metric"] == "eval_loss";
  bool dense_flips = false;
  for (const Json& row : document["rows"]) dense_flips |= row.contains("dense_flips");
  std::vector<std::string> heads = {
      "recipe",   "pattern", loss ? ">eval loss" : ">accuracy %", ">±", ">step vs dense", ">memory",
      ">density", ">flips"};
  if (dense_flips) heads.push_back(">of dense");
  if (options.budget > 0.0) heads.insert(heads.end(), {">steps", ">seconds"});
  heads.insert(heads.end(), {"sparse products", "check"});
  Table table(heads);
  if (dense_flips) table.can_spare({"of dense"});
  table.can_spare({"flips", "memory", "density"});
  for (const Json& row : document["rows"]) {
    const double scale = loss ? 1.0 : 100.0;
    const std::string pattern = row["pattern"].get<std::string>();
    const std::string products = row["sparse_products"].get<std::string>();
    std::vector<std::string> cells = {
        row["recipe"].get<std::string>(),
        pattern.empty() ? "-" : pattern,
        fmt::format("{:.{}f}", scale * row["mean"].get<double>(), loss ? 4 : 2),
        fmt::format("{:.{}f}", scale * row["sd"].get<double>(), loss ? 4 : 2),
        fmt::format("{:.2f} ({:.2f}-{:.2f})", row["step_ratio"].get<double>(),
                    row["step_ratio_spread"][0].get<double>(),
                    row["step_ratio_spread"][1].get<double>()),
        row.contains("memory_ratio") ? fmt::format("{:.2f}", row["memory_ratio"].get<double>())
                                     : "-",
        fmt::format("{:.3f}", row["density"].get<double>()),
        pattern.empty() ? "-" : fmt::format("{:.1e}", row["flip_rate"].get<double>())};
    if (dense_flips) {
      cells.push_back(row.contains("dense_flips")
                          ? fmt::format("{:.1e}", row["dense_flips"].get<double>())
                          : "-");
    }
    if (options.budget > 0.0) {
      cells.push_back(fmt::format("{}", row["steps"].get<int64_t>()));
      cells.push_back(fmt::format("{:.1f}", row["train_seconds"].get<double>()));
    }
    cells.insert(cells.end(),
                 {products.empty() ? "none" : products, row["check"].get<std::string>()});
    table.add(cells);
  }
  tables.print(table);
  const bench::Environment where = bench::environment();
  const RunOptions& run = options.run;
  const std::string each = options.budget > 0.0 ? fmt::format("{} s of training", options.budget)
                                                : fmt::format("{} steps", run.steps);
  tables.print_lines(fmt::format(
      "\n{} on {}: {} of {}, {} seeds; step vs dense: dense step time / step time, "
      "interleaved;\nmemory: peak resident set / that of dense; flips: in the sparse phase{}. {}, "
      "{}, {}, "
      "commit {}\n",
      run.model, run.data, each, run.batch, options.seeds,
      dense_flips ? "; dense flips: of the same masks on the dense run's weights" : "", where.cpu,
      where.isa, threads_text(where.threads), where.commit));
}

void print_comparison_briefly(const Json& document) {
  const bool loss = document["metric"] == "eval_loss";
  const bool budget = document.contains("budget_seconds");
  std::vector<std::string> heads = {
      "recipe",          "pattern", loss ? ">eval loss" : ">accuracy", ">density",
      "sparse products", ">speed",  budget ? ">steps" : ">file"};
  if (budget) heads.push_back(">seconds");
  Table table(heads);
  for (const Json& row : document["rows"]) {
    const std::string pattern = row["pattern"].get<std::string>();
    const std::string products = row["sparse_products"].get<std::string>();
    const double mean = row["mean"].get<double>();
    std::vector<std::string> cells = {row["recipe"].get<std::string>(),
                                      pattern.empty() ? "-" : pattern,
                                      loss ? fmt::format("{:.4f}", mean) : percent(mean),
                                      fmt::format("{:.2f}", row["density"].get<double>()),
                                      products.empty() ? "none" : products,
                                      fmt::format("{:.2f}", row["step_ratio"].get<double>())};
    if (budget) {
      cells.push_back(fmt::format("{}", row["steps"].get<int64_t>()));
      cells.push_back(fmt::format("{:.1f}", row["train_seconds"].get<double>()));
    } else {
      cells.push_back(bytes_text(row["file_bytes"].get<uint64_t>()));
    }
    table.add(cells);
  }
  print(table.str());
  const bench::Environment where = bench::environment();
  print(fmt::format("\nspeed: dense step time / step time, interleaved\n{}, {}, {}\n", where.cpu,
                    where.isa, threads_text(where.threads)));
}

}  // namespace

int compare_work(const CompareArguments& arguments) {
  const CompareOptions options = arguments.options();
  if (options.run.threads > 0) set_threads(static_cast<int>(options.run.threads));
  Progress progress("comparing", 100000);
  const StopSignal stop;
  NotePrinter notes(progress);
  const auto result = compare(
      arguments.out, options, &stop.signal(), [&](double fraction) { progress.reach(fraction); },
      &notes);
  progress.finish();
  constexpr const char* kStopped = "stopped: run the same command to continue";
  if (!arguments.tensorboard.empty()) export_tensorboard({arguments.out}, arguments.tensorboard);
  if (!result) stop.end_program(kStopped);
  std::vector<uint64_t> memory;
  try {
    if (!arguments.no_memory) memory = run_memory(options, *result, arguments.out, stop);
  } catch (const Stopped&) {
    stop.end_program(kStopped);
  }
  const Json document = comparison_json(options, *result, memory);
  write_file_atomically(std::filesystem::path(arguments.out) / "compare.json",
                        document.dump(2) + "\n");
  if (arguments.json) {
    print_json(document);
  } else {
    arguments.brief ? print_comparison_briefly(document)
                    : print_comparison(options, document, arguments.tables);
  }
  return 0;
}

}  // namespace weft::cli
