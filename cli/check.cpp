// weft check: is this file really N:M, along which axis, and if not, where does it fail?
#include <set>

#include "cli/progress.h"
#include "cli/shared.h"
#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/mask/verify.h"
#include "weft/pack/packed_file.h"
#include "weft/report/table.h"

namespace weft::cli {
namespace {

struct CheckedTensor {
  StoredWeight weight;  // of its tensor name, type and shape alone
  Promise promise;
  int64_t nonzero = 0;
  int64_t weights = 0;
  std::optional<GroupCount> in, out;

  bool obeys(bool strict) const {
    const auto good = [&](const std::optional<GroupCount>& count) {
      return !count || (count->violations == 0 && !(strict && count->short_groups > 0));
    };
    return good(in) && good(out);
  }
  double density() const {
    return weights == 0 ? 1.0 : static_cast<double>(nonzero) / static_cast<double>(weights);
  }
};

std::vector<int64_t> index_of(const WeightPosition& position, const StoredWeight& weight) {
  return weight.index_of(position.out, position.in * weight.shape().taps + position.tap);
}

struct FirstViolation {
  const char* axis;
  std::vector<int64_t> index;
};

std::optional<FirstViolation> first_violation(const CheckedTensor& tensor) {
  if (tensor.in && tensor.in->first_violation) {
    return FirstViolation{"in", index_of(*tensor.in->first_violation, tensor.weight)};
  }
  if (tensor.out && tensor.out->first_violation) {
    return FirstViolation{"out", index_of(*tensor.out->first_violation, tensor.weight)};
  }
  return std::nullopt;
}

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
    common_.declare(flags);
  }

  int run() override {
    common_.apply();
    const Checkpoint files = Checkpoint::open(file_);
    const PackedCheckpoint checkpoint(files);
    sparsity_ = files.sparsity();
    promise_packed(checkpoint);
    if (pattern_.empty() && sparsity_.tensors.empty()) {
      throw UsageError(fmt::format("--pattern is needed: {} carries no weft.sparsity", file_));
    }
    refuse_missing_tensors(checkpoint);
    std::vector<TensorInfo> tensors;
    for (const LogicalTensor& tensor : checkpoint.tensors()) tensors.push_back(tensor.info);
    const Selection selection = names_.selection(files, tensors);
    Progress progress("checking", files.bytes());
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      if (const auto reason = left_alone(selection, tensor.info)) {
        skipped_.push_back(skipped(tensor.info, *reason));
      } else {
        checked_.push_back(check(files, checkpoint, tensor, promise_for(selection, tensor.info)));
      }
      progress.add(tensor.stored_bytes);
    }
    progress.finish();
    WEFT_CHECK(!checked_.empty(), "{}: no tensor to check: {}", file_, nothing_selected(skipped_));
    common_.json ? report_json() : report();
    return valid() ? 0 : 1;
  }

 private:
  // A packed tensor has a pattern, if nothing else is promised of it.
  void promise_packed(const PackedCheckpoint& checkpoint) {
    for (const LogicalTensor& tensor : checkpoint.tensors()) {
      if (!tensor.packed()) continue;
      sparsity_.tensors.emplace(tensor.info.name,
                                Promise{*tensor.pattern(), Axis::kIn, "", tensor.transposed()});
    }
  }

  void refuse_missing_tensors(const PackedCheckpoint& checkpoint) const {
    std::set<std::string_view> names;
    for (const LogicalTensor& tensor : checkpoint.tensors()) names.insert(tensor.info.name);
    for (const auto& [name, promise] : sparsity_.tensors) {
      WEFT_CHECK(names.contains(name), "{}: weft.sparsity names tensor '{}', which is not there",
                 file_, printable(name));
    }
  }

  // A file with weft.sparsity is tested on what it promises; another one as `mask` would select.
  std::optional<LeftAlone> left_alone(const Selection& selection, const TensorInfo& tensor) const {
    if (sparsity_.tensors.empty()) return selection.left_alone(tensor);
    if (!sparsity_.tensors.contains(tensor.name)) return LeftAlone::kNotPromised;
    if (const auto reason = selection.left_alone_by_name(tensor.name)) return reason;
    WEFT_CHECK(
        WeightShape::accepts(tensor.shape) && has_zero(tensor.dtype),
        "{}: tensor '{}': weft.sparsity promises a pattern, which {} of shape {} cannot have",
        file_, printable(tensor.name), dtype_name(tensor.dtype), shape_text(tensor.shape));
    return std::nullopt;
  }

  Promise promise_for(const Selection& selection, const TensorInfo& tensor) const {
    const auto planned = sparsity_.tensors.find(tensor.name);
    const bool has_plan = planned != sparsity_.tensors.end();
    return {pattern_.empty() ? planned->second.pattern : Pattern::parse(pattern_),
            !axis_.empty() ? parse_axis(axis_)
            : has_plan     ? planned->second.axis
                           : Axis::kIn,
            has_plan ? planned->second.row_order : "",
            has_plan ? selection.is_transposed(tensor, planned->second)
                     : selection.is_transposed(tensor)};
  }

  static CheckedTensor check(const Checkpoint& files, const PackedCheckpoint& checkpoint,
                             const LogicalTensor& tensor, const Promise& promise) {
    const TensorInfo& info = tensor.info;
    CheckedTensor result{
        {{info, tensor.shard}, promise.transposed}, promise, 0, info.elements(), {}, {}};
    const Pattern& pattern = result.promise.pattern;
    if (result.promise.axis != Axis::kOut) result.in.emplace();
    if (result.promise.axis != Axis::kIn) result.out.emplace();

    // Rows that share by an order may lie anywhere: then the tensor is one band.
    const WeightShape whole = result.weight.shape();
    const auto order = read_row_order(files, result.promise, whole.outs);
    const int64_t multiple = std::max<int64_t>(pattern.block(), static_cast<int64_t>(order.size()));
    checkpoint.for_each_band(tensor, promise.transposed, multiple, [&](const Band& band) {
      const WeightShape shape{band.rows, whole.ins, whole.taps};
      const Mask nonzero = nonzero_mask(info.dtype, band.bytes, band.rows, shape.cols());
      result.nonzero += nonzero.count();
      const auto add = [&](std::optional<GroupCount>& to, GroupCount part) {
        if (part.first_violation) part.first_violation->out += band.first_row;
        *to += part;
      };
      if (result.in) add(result.in, count_groups_in(nonzero, shape, pattern, order));
      if (result.out) add(result.out, count_groups_out(nonzero, shape, pattern, order));
    });
    return result;
  }

  bool valid() const {
    return std::all_of(checked_.begin(), checked_.end(),
                       [&](const CheckedTensor& tensor) { return tensor.obeys(strict_); });
  }

  // Of all tensors, if they have one in common.
  std::optional<std::string> common_pattern() const {
    const std::string first = checked_.front().promise.pattern.str();
    for (const CheckedTensor& tensor : checked_) {
      if (tensor.promise.pattern.str() != first) return std::nullopt;
    }
    return first;
  }

  static std::string count_text(const std::optional<GroupCount>& count) {
    if (!count) return "-";
    return fmt::format("{} of {}", count->violations, count->groups);
  }

  std::string verdict(const CheckedTensor& tensor) const {
    if (const auto first = first_violation(tensor)) {
      return fmt::format("FAILS at {} ({})", shape_text(first->index), first->axis);
    }
    const int64_t cut =
        (tensor.in ? tensor.in->short_groups : 0) + (tensor.out ? tensor.out->short_groups : 0);
    if (!tensor.obeys(strict_)) return fmt::format("FAILS: {} short groups", cut);
    return cut == 0 ? "ok" : fmt::format("ok ({} short groups)", cut);
  }

  void report() const {
    Table table(
        {"tensor", "shape", "pattern", ">density", ">violations in", ">violations out", "verdict"});
    size_t failed = 0;
    for (const CheckedTensor& tensor : checked_) {
      if (!tensor.obeys(strict_)) ++failed;
      const TensorInfo& info = tensor.weight.tensor.info;
      table.add({printable(info.name), stored_shape_text(info.shape, tensor.weight.transposed),
                 tensor.promise.pattern.str(), percent(tensor.density()), count_text(tensor.in),
                 count_text(tensor.out), verdict(tensor)});
    }
    print(table.str());
    print_skipped(skipped_);
    const std::string pattern = common_pattern().value_or("their patterns");
    print(failed == 0 ? fmt::format("\n{}: {} tensors checked, all obey {}\n", file_,
                                    checked_.size(), pattern)
                      : fmt::format("\n{}: {} of {} tensors do not obey {}\n", file_, failed,
                                    checked_.size(), pattern));
  }

  void report_json() const {
    Json tensors = Json::array();
    for (const CheckedTensor& tensor : checked_) {
      const auto groups = [](const std::optional<GroupCount>& count) {
        return count ? Json(count->groups) : Json(nullptr);
      };
      const auto violations = [](const std::optional<GroupCount>& count) {
        return count ? Json(count->violations) : Json(nullptr);
      };
      const auto short_groups = [](const std::optional<GroupCount>& count) {
        return count ? Json(count->short_groups) : Json(nullptr);
      };
      const auto first = first_violation(tensor);
      tensors.push_back(
          {{"name", tensor.weight.tensor.info.name},
           {"shape", tensor.weight.tensor.info.shape},
           {"transposed", tensor.weight.transposed},
           {"pattern", tensor.promise.pattern.str()},
           {"density", tensor.density()},
           {"groups_in", groups(tensor.in)},
           {"violations_in", violations(tensor.in)},
           {"short_groups_in", short_groups(tensor.in)},
           {"groups_out", groups(tensor.out)},
           {"violations_out", violations(tensor.out)},
           {"short_groups_out", short_groups(tensor.out)},
           {"first_violation",
            first ? Json({{"axis", first->axis}, {"index", first->index}}) : Json(nullptr)}});
    }
    const auto pattern = common_pattern();
    print_json({{"pattern", pattern ? Json(*pattern) : Json(nullptr)},
                {"valid", valid()},
                {"skipped", to_json(skipped_)},
                {"tensors", tensors}});
  }

  std::string file_, pattern_, axis_;
  bool strict_ = false;
  CommonFlags common_;
  Sparsity sparsity_;
  NameFilter names_;
  std::vector<CheckedTensor> checked_;
  std::vector<Skipped> skipped_;
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
      "of one input (the backward product), whichever way a weight is stored: what is stored\n"
      "[ins, outs] the file says itself, or --transposed. Exit code 0 when every tested tensor\n"
      "obeys, 1 when one does not. The position printed is the first weight too many.",
      std::make_unique<CheckCommand>()};
}

}  // namespace weft::cli
