// weft bench convert: seconds per layer, by method.
#include <charconv>
#include <limits>

#include "bench/convert.h"
#include "bench/environment.h"
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/report/table.h"
#include "weft/run/memory.h"

namespace weft::cli {
namespace {

// "4096x1024": outs x ins
bench::LayerSize parse_layer(const std::string& text) {
  bench::LayerSize layer;
  const char* end = text.data() + text.size();
  const auto outs = std::from_chars(text.data(), end, layer.outs);
  const bool cross = outs.ec == std::errc() && outs.ptr != end && *outs.ptr == 'x';
  const auto ins = cross ? std::from_chars(outs.ptr + 1, end, layer.ins) : outs;
  WEFT_CHECK(cross && ins.ec == std::errc() && ins.ptr == end && layer.outs >= 1 &&
                 layer.outs <= 65536 && layer.ins >= 1 && layer.ins <= 32768,
             "layer '{}': accepted is OUTSxINS, from 1x1 to 65536x32768", text);
  return layer;
}

class BenchConvertCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.texts("--layer", "OUTSxINS", layers_, "Layers to convert",
                problem_in([](const std::string& text) { parse_layer(text); }));
    flags.texts("--pattern", "N:M[xS]", patterns_, "Patterns to convert to",
                problem_in([](const std::string& text) { Pattern::parse(text); }));
    flags.texts("--method", "NAME", methods_, "Methods (default: all)",
                problem_in([](const std::string& text) { method_of(text); }));
    flags.flag("--transposable", options_.transposable, "N:M along inputs and along outputs");
    flags.integer("--samples", options_.samples, 1, int64_t{1} << 32, "Samples of inputs");
    flags.integer("--seed", seed_, 0, std::numeric_limits<int64_t>::max(),
                  "Seed of weights and inputs");
    tables_.declare(flags);
    common_.declare(flags);
  }

  bool measures() const override { return true; }
  int run() override {
    common_.apply();
    options_.seed = static_cast<uint64_t>(seed_);
    for (const std::string& layer : layers_) options_.layers.push_back(parse_layer(layer));
    for (const std::string& pattern : patterns_)
      options_.patterns.push_back(Pattern::parse(pattern));
    for (const std::string& name : methods_) options_.methods.push_back(method_of(name));
    if (methods_.empty()) options_.methods.assign(methods().begin(), methods().end());
    Progress progress("converting", 1000);
    const auto records =
        bench::bench_convert(options_, [&](double fraction) { progress.reach(fraction); });
    progress.finish();
    common_.json ? report_json(records) : report(records);
    return 0;
  }

 private:
  void report(const std::vector<bench::ConvertRecord>& records) const {
    Table table({"layer", "pattern", "method", ">gram", ">convert", ">error before", ">error after",
                 ">steps"});
    for (const bench::ConvertRecord& r : records) {
      table.add({fmt::format("{}x{}", r.layer.outs, r.layer.ins), r.pattern.str(), r.method,
                 seconds_text(r.gram_seconds), seconds_text(r.seconds),
                 fmt::format("{:.5f}", r.error_before), fmt::format("{:.5f}", r.error_after),
                 r.steps > 0 ? std::to_string(r.steps) : "-"});
    }
    const bench::Environment on = bench::environment();
    tables_.print(table);
    tables_.print_lines(fmt::format("\n{} samples; peak memory {}; {}, {}, {}; {}; commit {}\n",
                                    options_.samples, bytes_text(peak_resident_bytes()), on.cpu,
                                    on.isa, threads_text(on.threads), on.compiler, on.commit));
  }

  void report_json(const std::vector<bench::ConvertRecord>& records) const {
    const bench::Environment on = bench::environment();
    Json list = Json::array();
    for (const bench::ConvertRecord& r : records) {
      list.push_back({{"method", r.method},
                      {"pattern", r.pattern.str()},
                      {"transposable", options_.transposable},
                      {"outs", r.layer.outs},
                      {"ins", r.layer.ins},
                      {"samples", options_.samples},
                      {"gram_seconds", r.gram_seconds},
                      {"seconds", r.seconds},
                      {"error_before", r.error_before},
                      {"error_after", r.error_after},
                      {"steps", r.steps},
                      {"peak_bytes", peak_resident_bytes()},
                      {"threads", on.threads},
                      {"isa", on.isa},
                      {"cpu", on.cpu},
                      {"compiler", on.compiler},
                      {"commit", on.commit}});
    }
    print_json(list);
  }

  std::vector<std::string> layers_ = {"512x512", "1024x1024"}, patterns_ = {"2:4"}, methods_;
  bench::ConvertOptions options_;
  int64_t seed_ = 1;
  TableFlags tables_;
  CommonFlags common_;
};

}  // namespace

CommandEntry bench_convert_command() {
  return {"bench convert", "Time the conversion of a layer",
          "  weft bench convert\n"
          "  weft bench convert --layer 4096x4096 --method adaprune --json\n"
          "  weft bench convert --layer 768x3072 --pattern 4:8 --pattern 1:4",
          std::make_unique<BenchConvertCommand>()};
}

}  // namespace weft::cli
