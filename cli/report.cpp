// weft report: a page about runs.
#include "weft/report/report.h"

#include "cli/shared.h"
#include "weft/core/text.h"

namespace weft::cli {
namespace {

class ReportCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positionals("run", folders_, "Folders of runs, or of comparisons");
    flags.text("--out", "FILE", out_, "The page to write, as in report.html");
    flags.require("--out");
  }

  int run() override {
    const WrittenReport report = write_report(folders_, out_);
    print(fmt::format("{}: {} run{}, {}; open it in a browser\n", printable(out_, 4096),
                      report.runs, report.runs == 1 ? "" : "s", bytes_text(report.bytes)));
    return 0;
  }

 private:
  std::vector<std::string> folders_;
  std::string out_;
};

}  // namespace

CommandEntry report_command() {
  return {"report", "Write a page with the curves, masks and times of runs",
          "  weft report runs/first --out report.html\n"
          "  weft report runs/compare --out report.html\n"
          "  weft report runs/first runs/second --out report.html\n"
          "\n"
          "The page is one HTML file without scripts; it opens from disk. Runs that differ in the\n"
          "seed alone are one curve with a band. Unfinished runs are shown as far as they are.",
          std::make_unique<ReportCommand>()};
}

}  // namespace weft::cli
