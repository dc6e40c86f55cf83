// weft bench gemm: the sparse products against the best dense one.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "bench/environment.h"
#include "bench/gemm.h"
#include "bench/peers.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/parallel.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class BenchGemmCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.texts("--shape", "TOKENSxINSxOUTS", shapes_, "Layers to run",
                problem_in([](const std::string& text) { LayerShape::parse(text); }));
    flags.texts("--pattern", "N:M[xS]", patterns_, "Patterns to run",
                problem_in([](const std::string& text) { Pattern::parse(text); }));
    flags.texts("--op", "NAME", ops_,
                "Products to run: fwd, bwd_x, bwd_x_ragged, bwd_w, bwd_w_masked",
                problem_in([](const std::string& text) { ProductForm::parse(text); }));
    flags.text(
        "--precision", "fp32|bf16", precision_,
        "Type of operands and results; bf16 is compared with dense bf16, and with dense fp32",
        problem_in([](const std::string& text) { parse_precision(text); }));
    flags.integer("--rounds", rounds_, 1, 1000, "Rounds; the result is their median");
    flags.integer("--threads", threads_, 0, kMaxThreads,
                  "Threads; 0 runs with one thread, then with all");
    flags.flag("--brief", brief_, "Only the means: a table that fits 80 columns");
    flags.flag("--json", json_, "Print JSON");
    tables_.declare(flags);
  }

  bool measures() const override { return true; }
  int run() override {
    bench::GemmOptions options;
    for (const std::string& text : shapes_) options.shapes.push_back(LayerShape::parse(text));
    for (const std::string& text : patterns_) options.patterns.push_back(Pattern::parse(text));
    options.forms.clear();
    for (const std::string& text : ops_) options.forms.push_back(ProductForm::parse(text));
    options.precision = parse_precision(precision_);
    options.rounds = static_cast<int>(rounds_);
    options.threads = {threads_ == 0 ? 1 : static_cast<int>(threads_)};
    if (threads_ == 0 && weft::threads() > 1) options.threads.push_back(weft::threads());

    Progress progress("measuring", 1000);
    const auto records =
        bench::bench_gemm(options, [&](double fraction) { progress.reach(fraction); });
    progress.finish();
    json_ ? report_json(records) : brief_ ? report_briefly(records) : report(records);
    return 0;
  }

 private:
  static std::string pattern_text(const bench::GemmRecord& r) {
    const bool narrow = r.values == Precision::kBf16 && r.arithmetic.storage == Precision::kFp32;
    return r.pattern.str() + (narrow ? " bf16" : "");
  }

  void report(const std::vector<bench::GemmRecord>& records) const {
    Table table({"op", "pattern", "shape", ">threads", ">dense ms", ">sparse ms", ">ratio (spread)",
                 ">eff. GFLOP/s", ">real % peak", ">dense % peak", ">pack ms", ">mask ms", "plan"});
    table.can_spare({"mask ms", "eff. GFLOP/s", "real % peak", "pack ms", "dense % peak"});
    bool disturbed = false;
    for (const bench::GemmRecord& r : records) {
      disturbed = disturbed || r.disturbed();
      table.add({r.form.name(), pattern_text(r), r.shape.str(), std::to_string(r.threads),
                 fmt::format("{:.3g}", r.dense_ms), fmt::format("{:.3g}", r.sparse_ms),
                 fmt::format("{:.2f} ({:.2f}-{:.2f}){}", r.ratio.median, r.ratio.low, r.ratio.high,
                             r.disturbed() ? "!" : ""),
                 fmt::format("{:.0f}", r.effective_gflops()),
                 fmt::format("{:.0f}", 100 * r.real_gflops() / r.peak_gflops),
                 fmt::format("{:.0f}", 100 * r.dense_gflops() / r.peak_gflops),
                 fmt::format("{:.3g}", r.pack_ms), fmt::format("{:.3g}", r.mask_ms),
                 r.plan ? r.plan->path() : "-"});
    }
    tables_.print(table);
    if (disturbed) {
      tables_.print_lines(
          "\n! the dense product stayed below 80 % of the peak: another process disturbed the "
          "run\n");
    }
    print("\n" + geometric_means(records));
    tables_.print_lines(choices_text(records));
    report_environment(records);
  }

  static void report_briefly(const std::vector<bench::GemmRecord>& records) {
    print(geometric_means(records));
    const bench::Environment where = bench::environment();
    print(fmt::format("dense time / sparse time, without packing\n{}, {}\n", where.cpu, where.isa));
  }

  // Over the shapes with many tokens, as the issue of speed is usually put.
  static std::string geometric_means(const std::vector<bench::GemmRecord>& records) {
    std::vector<std::string> order;
    std::map<std::string, std::map<ProductForm, bench::GeometricMean>> means;
    for (const bench::GemmRecord& r : records) {
      if (r.arithmetic.stream) continue;
      const std::string row = fmt::format("{}, {}", r.pattern.str(), threads_text(r.threads));
      if (!means.contains(row)) order.push_back(row);
      means[row][r.form].add(r.ratio.median);
    }
    Table table({"geometric mean", ">fwd", ">bwd_x", ">bwd_x_ragged", ">bwd_w", ">bwd_w_masked"});
    for (const std::string& row : order) {
      std::vector<std::string> cells = {row};
      for (const ProductForm& form : kProductForms) cells.push_back(means[row][form].str());
      table.add(cells);
    }
    return order.empty() ? "" : table.str() + "\n";
  }

  // How the planner's choices fare: packing of the sparse operand counted in, unless weights never
  // change.
  static std::string choices_text(const std::vector<bench::GemmRecord>& records) {
    int planned = 0, sparse = 0;
    double least = std::numeric_limits<double>::infinity();
    for (const bench::GemmRecord& r : records) {
      if (!r.plan) continue;
      ++planned;
      if (r.plan->choice != Choice::kSparse) continue;
      ++sparse;
      least = std::min(least, r.dense_ms / (r.sparse_ms + (r.arithmetic.stream ? 0 : r.pack_ms)));
    }
    return fmt::format("planner: sparse in {} of {} products{}\n", sparse, planned,
                       sparse == 0
                           ? ""
                           : fmt::format(", dense time / (sparse time + packing) there {:.2f} "
                                         "or more",
                                         least));
  }

  void report_environment(const std::vector<bench::GemmRecord>& records) const {
    const bench::Environment on = bench::environment();
    std::string peers;
    for (const bench::DensePeer& peer : bench::dense_peers().peers) {
      peers += (peers.empty() ? "" : ", ") + peer.name;
    }
    for (const std::string& absent : bench::dense_peers().absent) peers += "; without " + absent;
    if (records.front().dense_fp32_ms) {
      report_bf16_peers(records);
      tables_.print_lines(fmt::format("dense fp32: the fastest of {}\n", peers));
    } else {
      tables_.print_lines(fmt::format("dense peer: the fastest of {}\nbf16 dense: {}\n", peers,
                                      bf16_text(records)));
    }
    std::map<int, double> peaks;
    for (const bench::GemmRecord& r : records) {
      peaks[r.threads] = std::max(peaks[r.threads], r.peak_gflops);
    }
    std::string peak;
    for (const auto& [threads, gflops] : peaks) {
      peak +=
          fmt::format("{}{:.0f} with {}", peak.empty() ? "" : ", ", gflops, threads_text(threads));
    }
    tables_.print_lines(fmt::format("{}, {}, peak GFLOP/s {}; {}; commit {}\n", on.cpu, on.isa,
                                    peak, on.compiler, on.commit));
  }

  // Which dense products bf16 was compared with, and their speed against fp32.
  void report_bf16_peers(const std::vector<bench::GemmRecord>& records) const {
    bench::GeometricMean faster;
    std::map<std::string, int> peers;
    for (const bench::GemmRecord& r : records) {
      faster.add(*r.dense_fp32_ms / r.dense_ms);
      ++peers[fmt::format("{} ({})", r.dense_peer, r.arithmetic.str())];
    }
    std::string names;
    for (const auto& [name, count] : peers) names += (names.empty() ? "" : "; ") + name;
    tables_.print_lines(
        fmt::format("dense peer (arithmetic of the sparse product): {}\n"
                    "dense fp32 time / dense bf16 time: {}; tile unit: {}{}\n",
                    names, faster.str(), tile_unit_name(tile_unit()),
                    tile_unit_lacks().empty() ? "" : " (" + tile_unit_lacks() + ")"));
  }

  static std::string bf16_text(const std::vector<bench::GemmRecord>& records) {
    if (const std::string none = bench::no_bf16(); !none.empty()) return none;
    std::string text;
    for (const bench::GemmRecord& r : records) {
      const std::string one = fmt::format("{} {} x{}: {:.3g} ms ({:.2f} x fp32)", r.form.name(),
                                          r.shape.str(), r.threads, r.dense_bf16_ms.value_or(0),
                                          r.dense_ms / r.dense_bf16_ms.value_or(1));
      if (text.find(one) == std::string::npos) text += (text.empty() ? "" : "; ") + one;
    }
    return text;
  }

  void report_json(const std::vector<bench::GemmRecord>& records) const {
    const bench::Environment on = bench::environment();
    Json list = Json::array();
    for (const bench::GemmRecord& r : records) {
      list.push_back(
          {{"op", r.form.name()},
           {"pattern", r.pattern.str()},
           {"tokens", r.shape.tokens},
           {"ins", r.shape.ins},
           {"outs", r.shape.outs},
           {"threads", r.threads},
           {"isa", on.isa},
           {"dense_ms", r.dense_ms},
           {"sparse_ms", r.sparse_ms},
           {"ratio", r.ratio.median},
           {"ratio_spread", Json{r.ratio.low, r.ratio.high}},
           {"pack_ms", r.pack_ms},
           {"mask_ms", r.mask_ms},
           {"dense_gflops", r.dense_gflops()},
           {"peak_gflops", r.peak_gflops},
           {"plan", r.plan ? Json(r.plan->path()) : Json(nullptr)},
           {"dense_peer", r.dense_peer},
           {"disturbed", r.disturbed()},
           {"layout", r.form.masked ? Json(nullptr) : Json(layout_name(r.arithmetic.layout()))},
           {"precision", precision_name(r.arithmetic.storage)},
           {"arithmetic", r.arithmetic.str()},
           {"values", precision_name(r.values)},
           {"dense_bf16_ms", r.dense_bf16_ms ? Json(*r.dense_bf16_ms) : Json(nullptr)},
           {"dense_fp32_ms", r.dense_fp32_ms ? Json(*r.dense_fp32_ms) : Json(nullptr)},
           {"rounds", rounds_},
           {"cpu", on.cpu},
           {"compiler", on.compiler},
           {"commit", on.commit}});
    }
    print_json(list);
  }

  std::vector<std::string> shapes_ = {"2048x768x3072", "2048x3072x768", "2048x1024x4096",
                                      "2048x4096x1024", "2048x2048x2048"};
  std::vector<std::string> patterns_ = {"2:4", "2:4x2", "1:4", "2:8", "1:4x2", "1:8", "1:16"};
  std::vector<std::string> ops_ = {"fwd", "bwd_x", "bwd_x_ragged", "bwd_w", "bwd_w_masked"};
  std::string precision_ = "fp32";
  int64_t rounds_ = 5, threads_ = 0;
  bool brief_ = false, json_ = false;
  TableFlags tables_;
};

}  // namespace

CommandEntry bench_gemm_command() {
  return {"bench gemm", "Sparse products against the best dense product",
          "  weft bench gemm\n"
          "  weft bench gemm --json --shape 2048x768x3072 --pattern 2:4 --pattern 1:8\n"
          "  weft bench gemm --shape 1x4096x4096 --shape 4x4096x4096 --pattern 2:4   # few tokens\n"
          "  weft bench gemm --precision bf16 --pattern 2:4x16 --pattern 2:4x32 --pattern 1:8x16\n"
          "  WEFT_ISA=avx2 weft bench gemm --threads 1",
          std::make_unique<BenchGemmCommand>()};
}

}  // namespace weft::cli
