// weft bench conv: the sparse products of convolutions against the dense ones.
#include <algorithm>
#include <map>

#include "bench/conv.h"
#include "bench/environment.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/plan/timings.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class BenchConvCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.texts(
        "--conv", "IMAGESxINSxHEIGHTxWIDTH:OUTSxKHxKW", shapes_,
        "Convolutions to run; ',stride=2', ',pad=1', ',dilation=2' and ',groups=4' may follow "
        "(default: those of ResNet-50 and of a CIFAR ResNet)",
        problem_in([](const std::string& text) { check_measurable(ConvShape::parse(text)); }));
    flags.texts("--pattern", "N:M[xS]", patterns_, "Patterns to run",
                problem_in([](const std::string& text) { Pattern::parse(text); }));
    flags.texts("--op", "NAME", ops_,
                "Products to run: fwd, bwd_x, bwd_x_ragged, bwd_w, bwd_w_masked",
                problem_in([](const std::string& text) { ProductForm::parse(text); }));
    flags.integer("--rounds", rounds_, 1, 1000, "Rounds; the result is their median");
    flags.integer("--threads", threads_, 0, kMaxThreads,
                  "Threads; 0 runs with one thread, then with all");
    flags.flag("--json", json_, "Print JSON");
    tables_.declare(flags);
  }

  bool measures() const override { return true; }
  int run() override {
    bench::ConvOptions options;
    if (shapes_.empty()) {
      shapes_ = bench::resnet50_convolutions();
      const auto& more = bench::cifar_convolutions();
      shapes_.insert(shapes_.end(), more.begin(), more.end());
    }
    for (const std::string& text : shapes_) options.shapes.push_back(ConvShape::parse(text));
    for (const std::string& text : patterns_) options.patterns.push_back(Pattern::parse(text));
    for (const std::string& text : ops_) options.forms.push_back(ProductForm::parse(text));
    options.rounds = static_cast<int>(rounds_);
    options.threads = {threads_ == 0 ? 1 : static_cast<int>(threads_)};
    if (threads_ == 0 && weft::threads() > 1) options.threads.push_back(weft::threads());
    Progress progress("measuring", 1000);
    const auto records =
        bench::bench_conv(options, [&](double fraction) { progress.reach(fraction); });
    progress.finish();
    json_ ? report_json(records) : report(records);
    return 0;
  }

 private:
  void report(const std::vector<bench::ConvRecord>& records) const {
    Table table({"op", "pattern", "conv", ">threads", ">dense ms", ">sparse ms", ">ratio (spread)",
                 ">eff. GFLOP/s", ">dense % peak", ">pack ms", "dense peer", "plan"});
    table.can_spare(
        {"eff. GFLOP/s", "dense peer", "pack ms", "dense % peak", "sparse ms", "threads"});
    bool disturbed = false;
    for (const bench::ConvRecord& r : records) {
      disturbed = disturbed || r.disturbed();
      table.add({r.form.name(), r.pattern.str(), r.shape.spec(), std::to_string(r.threads),
                 fmt::format("{:.3g}", r.dense_ms), fmt::format("{:.3g}", r.sparse_ms),
                 fmt::format("{:.2f} ({:.2f}-{:.2f}){}", r.ratio.median, r.ratio.low, r.ratio.high,
                             r.disturbed() ? "!" : ""),
                 fmt::format("{:.0f}", r.effective_gflops()),
                 fmt::format("{:.0f}", 100 * r.dense_gflops() / r.peak_gflops),
                 fmt::format("{:.3g}", r.pack_ms), r.dense_peer, r.pays() ? "sparse" : "dense"});
    }
    tables_.print(table);
    if (disturbed) {
      tables_.print_lines(
          "\n! the dense product stayed below 50 % of the peak: it is bound by memory, or another "
          "process disturbed the run\n");
    }
    print("\n" + geometric_means(records));
    const bench::Environment on = bench::environment();
    tables_.print_lines(fmt::format(
        "dense time / sparse time without packing; 1 where dense is faster with packing counted\n"
        "in. 'pack' of a gradient is sampling and packing; of bwd_w_masked it is due when masks "
        "change\n{}, {}, peak GFLOP/s {:.0f}; {}; commit "
        "{}\n",
        on.cpu, on.isa, records.front().peak_gflops, on.compiler, on.commit));
  }

  // Over the shapes of ResNet-50 that were run; 1 x 1 and 3 x 3 apart where that matters.
  static std::string geometric_means(const std::vector<bench::ConvRecord>& records) {
    std::vector<std::string> order;
    std::map<std::string, std::map<std::string, bench::GeometricMean>> means;
    const auto& resnet50 = bench::resnet50_convolutions();
    for (const bench::ConvRecord& r : records) {
      if (std::find(resnet50.begin(), resnet50.end(), r.shape.spec()) == resnet50.end()) continue;
      const std::string row = fmt::format("{}, {}", r.pattern.str(), threads_text(r.threads));
      if (!means.contains(row)) order.push_back(row);
      const double ratio = r.pays() ? r.ratio.median : 1.0;
      means[row][r.form.name()].add(ratio);
      if (r.form.product == Product::kBackwardWeight) {
        means[row][r.form.name() + (r.shape.taps() == 1 ? " 1x1" : " 3x3")].add(ratio);
      }
    }
    const std::vector<std::string> columns = {"fwd",
                                              "bwd_x",
                                              "bwd_x_ragged",
                                              "bwd_w 1x1",
                                              "bwd_w 3x3",
                                              "bwd_w_masked 1x1",
                                              "bwd_w_masked 3x3"};
    std::vector<std::string> heads = {"ResNet-50, geometric mean"};
    for (const std::string& column : columns) heads.push_back(">" + column);
    Table table(heads);
    for (const std::string& row : order) {
      std::vector<std::string> cells = {row};
      for (const std::string& column : columns) cells.push_back(means[row][column].str());
      table.add(cells);
    }
    return order.empty() ? "" : table.str() + "\n";
  }

  void report_json(const std::vector<bench::ConvRecord>& records) const {
    const bench::Environment on = bench::environment();
    Json list = Json::array();
    for (const bench::ConvRecord& r : records) {
      list.push_back({{"op", r.form.name()},
                      {"pattern", r.pattern.str()},
                      {"conv", r.shape.spec()},
                      {"threads", r.threads},
                      {"isa", on.isa},
                      {"dense_ms", r.dense_ms},
                      {"sparse_ms", r.sparse_ms},
                      {"ratio", r.ratio.median},
                      {"ratio_spread", Json{r.ratio.low, r.ratio.high}},
                      {"pack_ms", r.pack_ms},
                      {"dense_gflops", r.dense_gflops()},
                      {"peak_gflops", r.peak_gflops},
                      {"plan", r.pays() ? "sparse" : "dense"},
                      {"dense_peer", r.dense_peer},
                      {"disturbed", r.disturbed()},
                      {"layout", "panel"},
                      {"precision", "fp32"},
                      {"rounds", rounds_},
                      {"cpu", on.cpu},
                      {"compiler", on.compiler},
                      {"commit", on.commit}});
    }
    print_json(list);
  }

  std::vector<std::string> shapes_;
  std::vector<std::string> patterns_ = {"2:4", "1:4"};
  std::vector<std::string> ops_ = {"fwd", "bwd_x", "bwd_x_ragged", "bwd_w", "bwd_w_masked"};
  int64_t rounds_ = 5, threads_ = 0;
  bool json_ = false;
  TableFlags tables_;
};

}  // namespace

CommandEntry bench_conv_command() {
  return {"bench conv", "Sparse products of convolutions against the best dense one",
          "  weft bench conv\n"
          "  weft bench conv --conv 8x64x56x56:128x3x3,stride=2,pad=1 --pattern 1:8 --json",
          std::make_unique<BenchConvCommand>()};
}

}  // namespace weft::cli
