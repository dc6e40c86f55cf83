// weft check: is this file really N:M, along which axis, and if not, where does it fail?
#include "cli/shared.h"
#include "weft/core/text.h"
#include "weft/prune/check_checkpoint.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

class CheckCommand : public Command {
 public:
  void declare(Flags& flags) override {
    flags.positional("file", file_, "Checkpoint: .safetensors, .index.json, or a folder");
    declare_pattern(flags, pattern_);
    flags.text("--axis", "in|out|both", axis_,
               "Axis to test (default: in, or what the file promises)",
               problem_in([](const std::string& text) { parse_axis(text); }));
    names_.declare(flags);
    flags.flag("--strict", strict_, "Refuse groups that the edge of a matrix cuts short");
    tables_.declare(flags);
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    CheckOptions options{file_, given_pattern(pattern_), {}, names_.expressions(), strict_};
    if (!axis_.empty()) options.axis = parse_axis(axis_);
    Progress progress("checking");
    const CheckReport report = check_checkpoint(options, listener(progress));
    progress.finish();
    common_.json ? print_report_json(report) : print_report(report);
    return report.valid() ? 0 : 1;
  }

 private:
  static std::string count_text(const std::optional<GroupCount>& count) {
    if (!count) return "-";
    return fmt::format("{} of {}", count->violations, count->groups);
  }

  static std::string verdict(const CheckedTensor& tensor) {
    if (const auto& first = tensor.first_violation) {
      return fmt::format("FAILS at {} ({})", shape_text(first->index), axis_name(first->axis));
    }
    const int64_t cut = tensor.short_groups();
    if (!tensor.obeys) return fmt::format("FAILS: {} short groups", cut);
    return cut == 0 ? "ok" : fmt::format("ok ({} short groups)", cut);
  }

  void print_report(const CheckReport& report) const {
    Table table(
        {"tensor", "shape", "pattern", ">density", ">violations in", ">violations out", "verdict"});
    size_t failed = 0;
    for (const CheckedTensor& tensor : report.tensors) {
      if (!tensor.obeys) ++failed;
      table.add({name_text(tensor.info.name),
                 stored_shape_text(tensor.info.shape, tensor.promise.transposed),
                 tensor.promise.pattern.str(), percent(tensor.density()), count_text(tensor.in),
                 count_text(tensor.out), verdict(tensor)});
    }
    table.can_spare({"density", "shape", "pattern", "violations out", "violations in"});
    tables_.print(table);
    tables_.print_left_alone(skipped(report.skipped),
                             report.tensors.size() + report.skipped.size());
    const auto common = report.common_pattern();
    const std::string pattern = common ? common->str() : "their patterns";
    const size_t all = report.tensors.size();
    print(failed == 0 ? fmt::format("\n{}: {} tensors checked, all obey {}\n", file_, all, pattern)
                      : fmt::format("\n{}: {} of {} tensors do not obey {}\n", file_, failed, all,
                                    pattern));
  }

  static void print_report_json(const CheckReport& report) {
    const auto figure = [](const std::optional<GroupCount>& count, int64_t GroupCount::*member) {
      return count ? Json((*count).*member) : Json(nullptr);
    };
    Json tensors = Json::array();
    for (const CheckedTensor& tensor : report.tensors) {
      const auto& first = tensor.first_violation;
      tensors.push_back({{"name", tensor.info.name},
                         {"shape", tensor.info.shape},
                         {"transposed", tensor.promise.transposed},
                         {"pattern", tensor.promise.pattern.str()},
                         {"density", tensor.density()},
                         {"groups_in", figure(tensor.in, &GroupCount::groups)},
                         {"violations_in", figure(tensor.in, &GroupCount::violations)},
                         {"short_groups_in", figure(tensor.in, &GroupCount::short_groups)},
                         {"groups_out", figure(tensor.out, &GroupCount::groups)},
                         {"violations_out", figure(tensor.out, &GroupCount::violations)},
                         {"short_groups_out", figure(tensor.out, &GroupCount::short_groups)},
                         {"first_violation",
                          first ? Json({{"axis", axis_name(first->axis)}, {"index", first->index}})
                                : Json(nullptr)}});
    }
    const auto pattern = report.common_pattern();
    print_json({{"pattern", pattern ? Json(pattern->str()) : Json(nullptr)},
                {"valid", report.valid()},
                {"skipped", to_json(skipped(report.skipped))},
                {"tensors", tensors}});
  }

  std::string file_, pattern_, axis_;
  bool strict_ = false;
  TensorTableFlags tables_;
  CommonFlags common_;
  NameFilter names_;
};

}  // namespace

CommandEntry check_command() {
  return {
      "check", "Test whether the weights of a file obey an N:M pattern",
      "  weft check sparse.safetensors                          what weft wrote says what to test\n"
      "  weft check model.safetensors --pattern 2:4\n"
      "  weft check model.safetensors --pattern 4:8 --axis both --include 'mlp'\n"
      "\n"
      "Axis `in` is along the inputs of one output (the forward product), `out` along the outputs\n"
      "of one input (the backward product). Weights stored [ins, outs] are named by the file or\n"
      "by --transposed. The exit code is 0 if every tested tensor obeys the pattern, else 1. The\n"
      "position printed is that of the first weight too many.",
      std::make_unique<CheckCommand>()};
}

}  // namespace weft::cli
