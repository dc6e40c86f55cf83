// weft info: what is in a checkpoint, how sparse it is, and which patterns it obeys already.
#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/prune/inspect_checkpoint.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

std::vector<std::string> texts_of(const std::vector<Pattern>& patterns) {
  std::vector<std::string> texts;
  for (const Pattern& pattern : patterns) texts.push_back(pattern.str());
  return texts;
}

std::string joined(const std::vector<Pattern>& patterns) {
  return patterns.empty() ? "-" : fmt::format("{}", fmt::join(texts_of(patterns), " "));
}

class InfoCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("file", file_, "Checkpoint: .safetensors, .index.json, or a folder");
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    Progress progress("reading");
    const InspectReport report = inspect_checkpoint(file_, listener(progress));
    progress.finish();
    common_.json ? print_report_json(report) : print_report(report);
    return 0;
  }

 private:
  void print_report(const InspectReport& report) const {
    Table table({"tensor", "dtype", "shape", "packed", ">size", ">density", "along inputs",
                 "along outputs"});
    for (const InspectedTensor& tensor : report.tensors) {
      table.add({printable(tensor.info.name), std::string(dtype_name(tensor.info.dtype)),
                 stored_shape_text(tensor.info.shape, tensor.transposed),
                 tensor.packed ? tensor.packed->str() : "-", bytes_text(tensor.stored_bytes),
                 tensor.density ? percent(*tensor.density) : "-", joined(tensor.patterns_in),
                 joined(tensor.patterns_out)});
    }
    print(table.str());
    if (!report.metadata.empty()) print("\nmetadata\n");
    for (const auto& [key, value] : report.metadata.members()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      print(fmt::format("  {} = {}\n", printable(key), printable(text)));
    }
    print(fmt::format("\n{}: {} tensors, {}{}{}\n", file_, report.tensors.size(),
                      bytes_text(report.bytes),
                      report.packed() > 0 ? fmt::format(", {} packed", report.packed()) : "",
                      report.sharded ? fmt::format(", {} shards", report.shards) : ""));
  }

  void print_report_json(const InspectReport& report) const {
    Json tensors = Json::array();
    for (const InspectedTensor& tensor : report.tensors) {
      tensors.push_back({{"name", tensor.info.name},
                         {"dtype", dtype_name(tensor.info.dtype)},
                         {"shape", tensor.info.shape},
                         {"transposed", tensor.transposed},
                         {"packed", tensor.packed ? Json(tensor.packed->str()) : Json(nullptr)},
                         {"bytes", tensor.stored_bytes},
                         {"density", tensor.density ? Json(*tensor.density) : Json(nullptr)},
                         {"patterns_in", texts_of(tensor.patterns_in)},
                         {"patterns_out", texts_of(tensor.patterns_out)}});
    }
    print_json({{"file", file_},
                {"shards", report.shards},
                {"bytes", report.bytes},
                {"metadata", report.metadata},
                {"tensors", tensors}});
  }

  std::string file_;
  CommonFlags common_;
};

}  // namespace

CommandEntry info_command() {
  return {
      "info", "List tensors, density and the tightest N:M patterns they obey",
      "  weft info model.safetensors\n"
      "  weft info sharded-model/ --json\n"
      "\n"
      "Groups of 2, 4, 8, 16, 32 and 64 are tested; a pattern that a smaller group implies is not\n"
      "listed (2:4 implies 4:8). A packed tensor is shown with its unpacked shape, its pattern "
      "and\n"
      "its packed size.",
      std::make_unique<InfoCommand>()};
}

}  // namespace weft::cli
