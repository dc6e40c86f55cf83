// weft bench conv: the sparse products of convolutions against the dense ones.
#include "bench/conv.h"
#include "bench/environment.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/error.h"
#include "weft/plan/timings.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class BenchConvCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.texts(
        "--conv", "IMAGESxINSxHEIGHTxWIDTH:OUTSxKHxKW", shapes_,
        "Convolutions to run; ',stride=2', ',pad=1', ',dilation=2' and ',groups=4' may follow",
        problem_in([](const std::string& text) { check_measurable(ConvShape::parse(text)); }));
    flags.texts("--pattern", "N:M[xS]", patterns_, "Patterns to run",
                problem_in([](const std::string& text) { Pattern::parse(text); }));
    flags.texts("--op", "NAME", ops_, "Products to run: fwd, bwd_x, bwd_x_ragged, bwd_w",
                problem_in([](const std::string& text) { parse_form(text); }));
    flags.integer("--rounds", rounds_, 1, 1000, "Rounds; the result is their median");
    common_.declare(flags);
  }

  bool measures() const override { return true; }
  int run() override {
    common_.apply();
    bench::ConvOptions options;
    for (const std::string& text : shapes_) options.shapes.push_back(ConvShape::parse(text));
    for (const std::string& text : patterns_) options.patterns.push_back(Pattern::parse(text));
    for (const std::string& text : ops_) options.forms.push_back(parse_form(text));
    options.rounds = static_cast<int>(rounds_);
    Progress progress("measuring", 1000);
    const auto records =
        bench::bench_conv(options, [&](double fraction) { progress.reach(fraction); });
    progress.finish();
    common_.json ? report_json(records) : report(records);
    return 0;
  }

 private:
  static ProductForm parse_form(const std::string& text) {
    const ProductForm form = ProductForm::parse(text);
    WEFT_CHECK(!form.masked, "product '{}': convolutions have no masked product", text);
    return form;
  }

  static void report(const std::vector<bench::ConvRecord>& records) {
    Table table({"op", "pattern", "shape", ">dense ms", ">sparse ms", ">ratio (spread)",
                 ">eff. GFLOP/s", ">dense % peak", ">pack ms"});
    for (const bench::ConvRecord& r : records) {
      table.add({r.form.name(), r.pattern.str(), r.shape.spec(), fmt::format("{:.3g}", r.dense_ms),
                 fmt::format("{:.3g}", r.sparse_ms),
                 fmt::format("{:.2f} ({:.2f}-{:.2f})", r.ratio.median, r.ratio.low, r.ratio.high),
                 fmt::format("{:.0f}", r.effective_gflops()),
                 fmt::format("{:.0f}", 100 * r.dense_gflops() / r.peak_gflops),
                 fmt::format("{:.3g}", r.pack_ms)});
    }
    print(table.str());
    const bench::Environment on = bench::environment();
    print(fmt::format("\n{}, {}, {}, peak GFLOP/s {:.0f}; {}; commit {}\n", on.cpu, on.isa,
                      threads_text(on.threads), records.front().peak_gflops, on.compiler,
                      on.commit));
  }

  void report_json(const std::vector<bench::ConvRecord>& records) const {
    const bench::Environment on = bench::environment();
    Json list = Json::array();
    for (const bench::ConvRecord& r : records) {
      list.push_back({{"op", r.form.name()},
                      {"pattern", r.pattern.str()},
                      {"shape", r.shape.spec()},
                      {"dense_ms", r.dense_ms},
                      {"sparse_ms", r.sparse_ms},
                      {"ratio", r.ratio.median},
                      {"ratio_spread", Json{r.ratio.low, r.ratio.high}},
                      {"pack_ms", r.pack_ms},
                      {"dense_gflops", r.dense_gflops()},
                      {"peak_gflops", r.peak_gflops},
                      {"rounds", rounds_},
                      {"threads", on.threads},
                      {"isa", on.isa},
                      {"cpu", on.cpu},
                      {"compiler", on.compiler},
                      {"commit", on.commit}});
    }
    print_json(list);
  }

  std::vector<std::string> shapes_ = {"8x64x56x56:64x3x3,pad=1", "8x256x14x14:256x3x3,pad=1",
                                      "8x256x14x14:1024x1x1"};
  std::vector<std::string> patterns_ = {"2:4", "1:4", "1:8"};
  std::vector<std::string> ops_ = {"fwd", "bwd_x", "bwd_x_ragged", "bwd_w"};
  int64_t rounds_ = 5;
  CommonFlags common_;
};

}  // namespace

CommandEntry bench_conv_command() {
  return {"bench conv", "Sparse products of convolutions against dense ones",
          "  weft bench conv\n"
          "  weft bench conv --conv 8x64x56x56:128x3x3,stride=2,pad=1 --pattern 1:8 --json",
          std::make_unique<BenchConvCommand>()};
}

}  // namespace weft::cli
