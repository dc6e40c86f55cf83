// weft generate: a trained gpt writes, on its packed weights.
#include "weft/decode/generate.h"
#include "cli/shared.h"
#include "weft/core/median.h"
#include "weft/report/table.h"
#include "weft/run/run_folder.h"
#include "weft/run/run_options.h"

namespace weft::cli {
namespace {

class GenerateCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("run", folder_, "Folder of a finished run of a gpt");
    flags.text("--prompt", "TEXT", prompt_, "Start of the text");
    flags.integer("--bytes", bytes_, 1, int64_t{1} << 30, "Bytes to write");
    flags.number("--temperature", options_.temperature, 0, 100,
                 "Sampling temperature; 0: always the likeliest byte");
    flags.integer("--top-k", top_k_, 0, 256, "Sample from the K likeliest bytes; 0: from all");
    flags.integer("--seed", seed_, 0, std::numeric_limits<int64_t>::max(), "Of what is drawn");
    flags.integer("--rounds", rounds_, 0, 100,
                  "Rounds of timing, packed and dense interleaved; 0: no timing");
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    const RunOptions run = options_of_run();
    const auto path = model_path();
    const Checkpoint checkpoint = Checkpoint::open(path);
    options_.max_bytes = bytes_;
    options_.top_k = static_cast<int>(top_k_);
    options_.seed = static_cast<uint64_t>(seed_);
    GptDecoder packed(checkpoint, run.heads);
    const GenerateResult result = write(packed);
    std::vector<double> packed_speeds = {result.tokens_per_second}, dense_speeds;
    if (rounds_ > 0) {
      GptWeightOptions dense_options;
      dense_options.dense = true;
      GptDecoder dense(checkpoint, run.heads, dense_options);
      packed_speeds.clear();
      for (int64_t round = 0; round < rounds_; ++round) {
        packed_speeds.push_back(generate(packed, prompt_, options_).tokens_per_second);
        dense_speeds.push_back(generate(dense, prompt_, options_).tokens_per_second);
      }
    }
    common_.json ? report_json(result, packed_speeds, dense_speeds)
                 : report(result, packed_speeds, dense_speeds);
    return 0;
  }

 private:
  RunOptions options_of_run() const {
    const Json record = read_run_record(folder_);
    RunOptions options = RunOptions::from_json(
        record["options"], (std::filesystem::path(folder_) / "run.json").string());
    WEFT_CHECK(options.model == "gpt", "{}: text generation needs model=gpt; this run is {}",
               folder_, options.model);
    return options.resolved();
  }

  std::filesystem::path model_path() const {
    const std::filesystem::path folder = folder_;
    for (const char* name : {"packed.safetensors", "model.safetensors"}) {
      std::error_code failure;
      if (std::filesystem::exists(folder / name, failure)) return folder / name;
    }
    throw Error(fmt::format("{}: the run has no model yet: continue it with `weft train --resume`",
                            folder_));
  }

  GenerateResult write(GptDecoder& decoder) {
    if (common_.json) return generate(decoder, prompt_, options_);
    print(prompt_);
    GenerateResult result = generate(decoder, prompt_, options_, [](uint8_t byte) {
      std::fputc(byte, stdout);
      std::fflush(stdout);
    });
    print("\n");
    return result;
  }

  void report(const GenerateResult& result, const std::vector<double>& packed,
              const std::vector<double>& dense) const {
    std::string line = fmt::format("\n{} tokens after a prompt of {}: {:.0f} tokens/s",
                                   result.text.size(), result.prompt_tokens, median(packed));
    if (!dense.empty()) {
      line += fmt::format(
          " on packed weights, {:.0f} dense: {:.2f} times as fast (median of {} "
          "interleaved rounds, {})",
          median(dense), median(packed) / median(dense), dense.size(), threads_text(threads()));
    }
    print(line + "\n");
  }

  void report_json(const GenerateResult& result, const std::vector<double>& packed,
                   const std::vector<double>& dense) const {
    Json document{{"prompt", prompt_},
                  {"text", result.text},
                  {"tokens", result.text.size()},
                  {"prompt_seconds", result.prompt_seconds},
                  {"tokens_per_second", median(packed)},
                  {"threads", threads()}};
    if (!dense.empty()) {
      document["dense_tokens_per_second"] = median(dense);
      document["ratio"] = median(packed) / median(dense);
    }
    print_json(document);
  }

  std::string folder_, prompt_;
  GenerateOptions options_;
  int64_t bytes_ = 256, top_k_ = 0, seed_ = 1, rounds_ = 3;
  CommonFlags common_;
};

}  // namespace

CommandEntry generate_command() {
  return {"generate", "Generate text with a trained gpt, from packed weights",
          "  weft generate runs/gpt --prompt 'ROMEO:' --bytes 400\n"
          "  weft generate runs/gpt --temperature 0 --rounds 0",
          std::make_unique<GenerateCommand>()};
}

}  // namespace weft::cli
