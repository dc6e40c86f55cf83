// weft bench solve: the mask solvers against minimum-cost flow.
#include <limits>

#include "bench/environment.h"
#include "bench/solve.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/parallel.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class BenchSolveCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.texts("--pattern", "N:M[xS]", patterns_, "Patterns to solve for",
                problem_in([](const std::string& text) { Pattern::parse(text); }));
    flags.texts("--solver", "NAME", solvers_, "Solvers to run (default: all)",
                problem_in([](const std::string& text) { weft::solver(text); }));
    flags.integer("--size", options_.size, 64, 32768, "Rows and columns of the matrix");
    flags.integer("--rounds", rounds_, 1, 1000, "Rounds; the result is their median");
    flags.number("--seconds", options_.seconds, 0, 1e9,
                 "Time limit for all rounds; fewer are run if they would take longer");
    flags.integer("--seed", seed_, 0, std::numeric_limits<int64_t>::max(), "Of the weights");
    common_.threads = 1;
    tables_.declare(flags);
    common_.declare(flags);
  }

  bool measures() const override { return true; }
  int run() override {
    common_.apply();
    options_.rounds = static_cast<int>(rounds_);
    options_.seed = static_cast<uint64_t>(seed_);
    for (const std::string& pattern : patterns_)
      options_.patterns.push_back(Pattern::parse(pattern));
    for (const std::string& name : solvers_) options_.solvers.push_back(&weft::solver(name));
    if (solvers_.empty()) {
      for (const Solver& solver : weft::solvers()) options_.solvers.push_back(&solver);
    }

    Progress progress("measuring", 1000);
    const auto records =
        bench::bench_solve(options_, [&](double fraction) { progress.reach(fraction); });
    progress.finish();
    common_.json ? report_json(records) : report(records);
    return 0;
  }

 private:
  static std::string spread_text(const bench::Spread& spread) {
    return fmt::format("{:.1f} ({:.1f}-{:.1f})", spread.median, spread.low, spread.high);
  }

  static std::string part_text(const bench::Spread& spread) {
    return fmt::format("{:.3f} ({:.3f}-{:.3f})", spread.median, spread.low, spread.high);
  }

  void report(const std::vector<bench::SolveRecord>& records) const {
    Table table({"pattern", "solver", ">Mweights/s (spread)", ">x read (spread)",
                 ">x flow (spread)", ">one run", ">rounds"});
    table.can_spare({"rounds", "x read (spread)"});
    for (const bench::SolveRecord& record : records) {
      table.add({record.pattern.str() + (record.transposable ? " transposable" : ""), record.solver,
                 spread_text(record.mweights_per_s), part_text(record.part_of_read),
                 record.ratio_to_flow ? spread_text(*record.ratio_to_flow) : "-",
                 seconds_text(record.seconds), std::to_string(record.rounds)});
    }
    const bench::Environment on = bench::environment();
    tables_.print(table);
    tables_.print_lines(fmt::format(
        "\n{0} x {0} Gaussian fp32 weights; {1}, {2}, {3}; {4}; commit {5}\n", options_.size,
        on.cpu, on.isa, threads_text(on.threads), on.compiler, on.commit));
  }

  void report_json(const std::vector<bench::SolveRecord>& records) const {
    const bench::Environment on = bench::environment();
    const auto spread = [](const bench::Spread& s) { return Json{s.low, s.high}; };
    Json list = Json::array();
    for (const bench::SolveRecord& record : records) {
      const auto& ratio = record.ratio_to_flow;
      list.push_back({{"solver", record.solver},
                      {"pattern", record.pattern.str()},
                      {"transposable", record.transposable},
                      {"mweights_per_s", record.mweights_per_s.median},
                      {"mweights_per_s_spread", spread(record.mweights_per_s)},
                      {"part_of_read", record.part_of_read.median},
                      {"part_of_read_spread", spread(record.part_of_read)},
                      {"ratio_to_flow", ratio ? Json(ratio->median) : Json(nullptr)},
                      {"ratio_to_flow_spread", ratio ? spread(*ratio) : Json(nullptr)},
                      {"seconds", record.seconds},
                      {"size", options_.size},
                      {"rounds", record.rounds},
                      {"threads", on.threads},
                      {"isa", on.isa},
                      {"cpu", on.cpu},
                      {"compiler", on.compiler},
                      {"commit", on.commit}});
    }
    print_json(list);
  }

  std::vector<std::string> patterns_ = {"2:4", "1:4", "4:8", "8:16", "16:32"};
  std::vector<std::string> solvers_;
  bench::SolveOptions options_;
  int64_t rounds_ = 5, seed_ = 1;
  TableFlags tables_;
  CommonFlags common_;
};

}  // namespace

CommandEntry bench_solve_command() {
  return {"bench solve", "Throughput of the mask solvers against minimum-cost flow",
          "  weft bench solve\n"
          "  weft bench solve --json\n"
          "  weft bench solve --size 8192 --pattern 8:16 --solver exact --threads 2",
          std::make_unique<BenchSolveCommand>()};
}

}  // namespace weft::cli
