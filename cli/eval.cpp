// weft eval: the model of a finished run on the test samples.
#include "cli/shared.h"
#include "cli/train_commands.h"
#include "weft/report/table.h"
#include "weft/train/trainer/load_model.h"

namespace weft::cli {
namespace {

class EvalCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("run", folder_, "Folder of a finished run");
    flags.text("--weights", "FILE", weights_,
               "Other weights than the run's: what a conversion has made of them");
    flags.text("--data", "DATA", data_, "Other data than the run's",
               problem_in([](const std::string& text) { DataSpec::parse(text); }));
    flags.integer("--samples", samples_, 0, int64_t{1} << 40, "Test samples; 0: all");
    flags.integer("--threads", threads_, 0, kMaxThreads, "Threads; 0: as the run");
    flags.flag("--json", json_, "Print JSON");
  }

  int run() override {
    RunParts parts = weights_.empty() ? load_model(folder_, data_)
                                      : load_network(folder_, weights_, data_, print_note);
    set_threads(
        static_cast<int>(threads_ > 0 ? threads_ : std::max<int64_t>(1, parts.options.threads)));
    at::set_num_threads(threads());
    const EvalReport r = evaluate(*parts.model, *parts.source,
                                  parts.options.batch / parts.options.accumulate, samples_);
    if (json_) {
      print_json({{"run", folder_},
                  {"weights", weights_.empty() ? Json(nullptr) : Json(weights_)},
                  {"data", parts.options.data},
                  {"eval_loss", r.loss},
                  {"eval_accuracy", r.accuracy},
                  {"eval_samples", r.samples},
                  {"seconds", r.seconds}});
      return 0;
    }
    const double units = static_cast<double>(r.samples * parts.source->units_per_sample());
    Table table({"evaluation", ""});
    table.add({"data", parts.options.data});
    table.add({"samples", fmt::format("{}", r.samples)});
    table.add({"accuracy", percent(r.accuracy)});
    table.add({"loss", fmt::format("{:.4f}", r.loss)});
    table.add({"speed", fmt::format("{:.0f} {}/s", units / r.seconds, parts.source->unit())});
    print(table.str());
    return 0;
  }

 private:
  std::string folder_, weights_, data_;
  int64_t samples_ = 0, threads_ = 0;
  bool json_ = false;
};

}  // namespace

CommandEntry eval_command() {
  return {kEval.name, kEval.description,
          "  weft eval runs/first\n"
          "  weft eval runs/first --data idx:mnist --json\n"
          "  weft eval runs/first --weights sparse.safetensors",
          std::make_unique<EvalCommand>()};
}

}  // namespace weft::cli
