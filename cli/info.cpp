// weft info: what is in a checkpoint, how sparse it is, and which patterns it obeys already.
#include <algorithm>

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
    tables_.declare(flags);
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
    const bool all = tables_.verbose || std::ranges::none_of(report.tensors, is_matrix);
    size_t others = 0;
    uint64_t other_bytes = 0;
    for (const InspectedTensor& tensor : report.tensors) {
      if (!all && !is_matrix(tensor)) {
        ++others;
        other_bytes += tensor.stored_bytes;
        continue;
      }
      table.add({name_text(tensor.info.name), std::string(dtype_name(tensor.info.dtype)),
                 stored_shape_text(tensor.info.shape, tensor.transposed),
                 tensor.packed ? tensor.packed->str() : "-", bytes_text(tensor.stored_bytes),
                 tensor.density ? percent(*tensor.density) : "-", joined(tensor.patterns_in),
                 joined(tensor.patterns_out)});
    }
    table.can_spare({"packed", "size", "dtype"});
    tables_.print(table);
    if (others > 0) {
      print_paragraph(
          fmt::format("and {} tensors of fewer than two dimensions (biases, norms), {}; "
                      "--verbose lists them",
                      others, bytes_text(other_bytes)));
    }
    print_not_finite(report);
    print_metadata(report.metadata);
    print(fmt::format("\n{}: {} tensor{}, {}{}{}{}\n", file_, report.tensors.size(),
                      report.tensors.size() == 1 ? "" : "s", bytes_text(report.bytes),
                      report.not_finite() > 0
                          ? fmt::format(", {} with NaN or infinity", report.not_finite())
                          : "",
                      report.packed() > 0 ? fmt::format(", {} packed", report.packed()) : "",
                      report.sharded ? fmt::format(", {} shards", report.shards) : ""));
  }

  static bool is_matrix(const InspectedTensor& tensor) { return tensor.info.shape.size() >= 2; }

  void print_not_finite(const InspectReport& report) const {
    if (report.not_finite() == 0) return;
    Table table({"not finite", ">NaN", ">infinite", ">of elements"});
    for (const InspectedTensor& tensor : report.tensors) {
      if (tensor.nan + tensor.infinite == 0) continue;
      table.add({name_text(tensor.info.name), std::to_string(tensor.nan),
                 std::to_string(tensor.infinite), std::to_string(tensor.info.elements())});
    }
    print("\n");
    tables_.print(table);
  }

  void print_metadata(const Json& metadata) const {
    if (metadata.empty()) return;
    print("\nmetadata\n");
    for (const auto& [key, value] : metadata.members()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      const std::string name = printable(key);
      const size_t left = kTableColumns - std::min(kTableColumns - 20, name.size() + 8);
      print(fmt::format("  {} = {}\n", name, printable(text, tables_.wide ? 4096 : left)));
    }
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
                         {"patterns_out", texts_of(tensor.patterns_out)},
                         {"nan", tensor.nan},
                         {"infinite", tensor.infinite}});
    }
    print_json({{"file", file_},
                {"shards", report.shards},
                {"bytes", report.bytes},
                {"metadata", report.metadata},
                {"tensors", tensors}});
  }

  std::string file_;
  TensorTableFlags tables_;
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
      "its packed size. NaN and infinity are counted. --verbose lists biases and norms too.",
      std::make_unique<InfoCommand>()};
}

}  // namespace weft::cli
