// weft study: puts a claim of a paper to the test, and says what came out.
#include "weft/study/study.h"

#include "bench/environment.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/report/table.h"
#include "weft/run/repeat_command.h"
#include "weft/study/claims.h"

namespace weft::cli {
namespace {

std::string about(double seconds) {
  if (seconds < 90.0) return fmt::format("{:.0f} s", std::max(1.0, seconds));
  return fmt::format("{:.0f} min", seconds / 60.0);
}

class StudyCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("name", name_, "The claim to test, or list: what there is, and what it costs");
    flags.text("--out", "FILE", options_out_,
               "Where its rows are kept: rows that are there are not measured again");
    flags.integer("--seeds", options_.seeds, 1, 1000, "Seeds of each variant, from 1 on");
    flags.flag("--short", options_.small, "As little work as shows that it works");
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    if (name_ == "list") return list();
    const Claim& one = claim(name_);
    options_.file = options_out_;
    options_.commit = bench::environment().commit;
    options_.command = fmt::format("weft study {}", name_);
    if (options_.small) options_.command += " --short";
    if (options_.seeds != StudyOptions().seeds) {
      options_.command += fmt::format(" --seeds {}", options_.seeds);
    }
    if (!options_out_.empty()) {
      options_.command += fmt::format(" --out {}", shell_word(options_out_));
    }
    const size_t left = runs_left(one, options_).size();
    std::fputs(
        fmt::format("weft: {}: {} of {} runs left{}\n", one.name, left,
                    one.variants.size() * static_cast<size_t>(options_.seeds), cost_text(one, left))
            .c_str(),
        stderr);
    Progress progress("studying", left);
    const StudyResult result = run_study(one, options_, [&](size_t) { progress.add(1); });
    progress.finish();
    common_.json ? print_result_json(one, result) : print(result.text);
    return 0;
  }

 private:
  std::string cost_text(const Claim& one, size_t runs) const {
    if (runs == 0 || options_.small) return "";
    return fmt::format(", about {}", about(one.run_seconds * static_cast<double>(runs)));
  }

  int list() const {
    Table table({"study", "paper", ">runs", ">about", "claim"});
    Json all = Json::array();
    for (const Claim& one : claims()) {
      const size_t runs = one.variants.size() * static_cast<size_t>(options_.seeds);
      const double seconds = one.run_seconds * static_cast<double>(runs);
      table.add({std::string(one.name), std::string(one.paper), fmt::format("{}", runs),
                 about(seconds), std::string(one.statement)});
      all.push_back({{"study", one.name},
                     {"paper", one.paper},
                     {"runs", runs},
                     {"seconds", seconds},
                     {"claim", one.statement}});
    }
    common_.json ? print_json(all) : print(table.str(kTableColumns));
    return 0;
  }

  void print_result_json(const Claim& one, const StudyResult& result) const {
    Json rows = Json::array();
    for (const StudyRow& row : result.rows) {
      Json figures = Json::object();
      for (size_t i = 0; i < row.figures.size(); ++i) {
        figures.append(one.figures[i], row.figures[i]);
      }
      rows.push_back({{"variant", row.run.variant}, {"seed", row.run.seed}, {"figures", figures}});
    }
    print_json({{"study", one.name},
                {"claim", one.statement},
                {"rows", rows},
                {"verdict", verdict_text(result.judgement.verdict)},
                {"reason", result.judgement.reason}});
  }

  std::string name_, options_out_;
  StudyOptions options_;
  CommonFlags common_;
};

}  // namespace

CommandEntry study_command() {
  return {
      "study", "Put a claim of a paper to the test",
      "  weft study list\n"
      "  weft study diversity --out docs/results/study-diversity.txt\n"
      "  weft study approximation --seeds 10 --json\n"
      "\n"
      "Measures every variant of the claim with every seed, and compares them seed by seed. With\n"
      "--out each run is saved when it ends: a study that is stopped goes on with the same\n"
      "command, and one with more seeds measures these alone.",
      std::make_unique<StudyCommand>()};
}

}  // namespace weft::cli
