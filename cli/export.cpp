// weft export: the metrics of runs for other programs.
#include "weft/report/export.h"

#include "cli/shared.h"
#include "weft/core/atomic_file.h"
#include "weft/core/text.h"

namespace weft::cli {
namespace {

class ExportCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positionals("run", folders_, "Folders of runs, or of comparisons");
    flags.text("--to", "csv|tensorboard", to_, "Format", one_of({"csv", "tensorboard"}));
    flags.require("--to");
    flags.text("--out", "PATH", out_,
               "csv: the file (default: standard output); tensorboard: a folder, with one per run");
    flags.flag("--layers", layers_, "csv: a row per step, layer and figure");
  }

  int run() override {
    if (to_ == "tensorboard") return write_tensorboard();
    const auto write = layers_ ? export_layers_csv : export_csv;
    if (out_.empty()) {
      write(folders_, [](std::string_view text) { print(std::string(text)); });
    } else {
      AtomicFile file(out_);
      uint64_t bytes = 0;
      write(folders_, [&](std::string_view text) {
        file.write_at(bytes, std::as_bytes(std::span(text)));
        bytes += text.size();
      });
      file.commit();
      print(fmt::format("{}: {}\n", printable(out_, 4096), bytes_text(bytes)));
    }
    return 0;
  }

 private:
  int write_tensorboard() {
    if (out_.empty()) throw UsageError("--to tensorboard needs --out DIR");
    if (layers_) throw UsageError("--layers is for --to csv: event files have all layers");
    for (const std::filesystem::path& file : export_tensorboard(folders_, out_)) {
      print(printable(file.string(), 4096) + "\n");
    }
    print(fmt::format("view them with: tensorboard --logdir {}\n", printable(out_, 4096)));
    return 0;
  }

  std::vector<std::string> folders_;
  std::string to_, out_;
  bool layers_ = false;
};

}  // namespace

CommandEntry export_command() {
  return {"export", "Write the metrics of runs as CSV or for TensorBoard",
          "  weft export runs/first --to csv\n"
          "  weft export runs/compare --to csv --out metrics.csv\n"
          "  weft export runs/first --to csv --layers --out layers.csv\n"
          "  weft export runs/compare --to tensorboard --out events",
          std::make_unique<ExportCommand>()};
}

}  // namespace weft::cli
