// weft bench attention: attention in blocks against attention in three steps.
#include "bench/attention.h"
#include "bench/environment.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class BenchAttentionCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.integer("--batch", shape_.batch, 1, 1 << 12, "Sequences");
    flags.integer("--tokens", shape_.tokens, 1, 1 << 14, "Tokens of each");
    flags.integer("--heads", shape_.heads, 1, 1 << 10, "Heads");
    flags.integer("--width", shape_.width, 1, 1 << 14,
                  "Width of all heads together; a multiple of the number of heads");
    flags.integer("--rounds", rounds_, 1, 1000, "Rounds; the result is their median");
    tables_.declare(flags);
    common_.declare(flags);
  }

  bool measures() const override { return true; }
  int run() override {
    common_.apply();
    std::vector<AttentionShape> shapes = {shape_, shape_};
    shapes[1].causal = true;
    Progress progress("measuring", 1000);
    const auto records = bench::bench_attention(shapes, static_cast<int>(rounds_),
                                                [&](double fraction) { progress.reach(fraction); });
    progress.finish();
    common_.json ? report_json(records) : report(records);
    return 0;
  }

 private:
  void report(const std::vector<bench::AttentionRecord>& records) const {
    Table table({"mask", ">fwd ms", ">fwd % peak", ">bwd ms", ">bwd % peak", ">three steps ms",
                 ">ratio (spread)"});
    for (const bench::AttentionRecord& r : records) {
      const auto share = [&](double flops, double ms) {
        return fmt::format("{:.0f}", 100 * flops / ms * 1e-6 / r.peak_gflops);
      };
      table.add({r.shape.causal ? "causal" : "none", fmt::format("{:.3g}", r.forward_ms),
                 share(r.forward_flops(), r.forward_ms), fmt::format("{:.3g}", r.backward_ms),
                 share(r.backward_flops(), r.backward_ms), fmt::format("{:.3g}", r.steps_ms),
                 fmt::format("{:.2f} ({:.2f}-{:.2f})", r.ratio.median, r.ratio.low, r.ratio.high)});
    }
    tables_.print(table);
    const AttentionShape& shape = records.front().shape;
    const bench::Environment on = bench::environment();
    tables_.print_lines(
        fmt::format("\n{} sequences of {} tokens, {} heads, width {}; {}, {}, {}; {}; commit {}\n",
                    shape.batch, shape.tokens, shape.heads, shape.width, on.cpu, on.isa,
                    threads_text(on.threads), on.compiler, on.commit));
  }

  void report_json(const std::vector<bench::AttentionRecord>& records) const {
    const bench::Environment on = bench::environment();
    Json list = Json::array();
    for (const bench::AttentionRecord& r : records) {
      list.push_back({{"batch", r.shape.batch},
                      {"tokens", r.shape.tokens},
                      {"heads", r.shape.heads},
                      {"width", r.shape.width},
                      {"causal", r.shape.causal},
                      {"fwd_ms", r.forward_ms},
                      {"bwd_ms", r.backward_ms},
                      {"three_steps_ms", r.steps_ms},
                      {"ratio", r.ratio.median},
                      {"ratio_spread", Json{r.ratio.low, r.ratio.high}},
                      {"fwd_gflops", r.forward_flops() / r.forward_ms * 1e-6},
                      {"bwd_gflops", r.backward_flops() / r.backward_ms * 1e-6},
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

  AttentionShape shape_{8, 256, 12, 768, false};
  int64_t rounds_ = 5;
  TableFlags tables_;
  CommonFlags common_;
};

}  // namespace

CommandEntry bench_attention_command() {
  return {"bench attention", "Attention in blocks against attention in three steps",
          "  weft bench attention\n"
          "  weft bench attention --batch 2 --tokens 1024 --heads 8 --width 512 --threads 1 --json",
          std::make_unique<BenchAttentionCommand>()};
}

}  // namespace weft::cli
