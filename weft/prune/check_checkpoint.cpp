#include "weft/prune/check_checkpoint.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "weft/checkpoint/row_order_tensor.h"
#include "weft/core/text.h"
#include "weft/pack/packed_file.h"

namespace weft {
namespace {

// The promises of the file. A packed tensor has a pattern, if nothing else is promised of it.
Sparsity promises_of(const Checkpoint& files, const PackedCheckpoint& checkpoint) {
  Sparsity sparsity = files.sparsity();
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!tensor.packed()) continue;
    sparsity.tensors.emplace(tensor.info.name,
                             Promise{*tensor.pattern(), Axis::kIn, "", tensor.transposed()});
  }
  return sparsity;
}

class CheckpointChecker {
 public:
  CheckpointChecker(const CheckOptions& options, const Listener& listener)
      : options_(options),
        listener_(listener),
        files_(Checkpoint::open(options.file)),
        checkpoint_(files_),
        sparsity_(promises_of(files_, checkpoint_)) {}

  CheckReport check() const {
    if (!options_.pattern && sparsity_.tensors.empty()) {
      throw OptionError("pattern", fmt::format(" is needed: {} carries no weft.sparsity", file()));
    }
    refuse_missing_tensors();
    std::vector<TensorInfo> tensors;
    for (const LogicalTensor& tensor : checkpoint_.tensors()) tensors.push_back(tensor.info);
    const Selection selection = select_tensors(options_.names, files_, tensors, listener_);
    CheckReport report;
    ByteProgress progress(listener_, files_.bytes());
    for (const LogicalTensor& tensor : checkpoint_.tensors()) {
      if (const auto reason = left_alone(selection, tensor.info)) {
        report.skipped.push_back({tensor.info, *reason});
      } else {
        report.tensors.push_back(check(tensor, promise_for(selection, tensor.info)));
      }
      progress.add(tensor.stored_bytes);
    }
    WEFT_CHECK(!report.tensors.empty(), "{}: no tensor to check: {}", file(),
               nothing_selected(report.skipped));
    return report;
  }

 private:
  std::string file() const { return options_.file.string(); }

  void refuse_missing_tensors() const {
    std::set<std::string_view> names;
    for (const LogicalTensor& tensor : checkpoint_.tensors()) names.insert(tensor.info.name);
    for (const auto& [name, promise] : sparsity_.tensors) {
      WEFT_CHECK(names.contains(name), "{}: weft.sparsity names tensor '{}', which is missing",
                 file(), printable(name));
    }
  }

  std::optional<LeftAlone> left_alone(const Selection& selection, const TensorInfo& tensor) const {
    if (sparsity_.tensors.empty()) return selection.left_alone(tensor);
    if (!sparsity_.tensors.contains(tensor.name)) return LeftAlone::kNotPromised;
    if (const auto reason = selection.left_alone_by_name(tensor.name)) return reason;
    WEFT_CHECK(
        WeightShape::accepts(tensor.shape) && has_zero(tensor.dtype),
        "{}: tensor '{}': weft.sparsity promises a pattern, which {} of shape {} cannot have",
        file(), printable(tensor.name), dtype_name(tensor.dtype), shape_text(tensor.shape));
    return std::nullopt;
  }

  // What to test: what the file promises, and instead of that what the options say.
  Promise promise_for(const Selection& selection, const TensorInfo& tensor) const {
    const auto found = sparsity_.tensors.find(tensor.name);
    if (found == sparsity_.tensors.end()) {
      return {*options_.pattern, options_.axis.value_or(Axis::kIn), "",
              selection.is_transposed(tensor)};
    }
    Promise promise = found->second;
    if (options_.pattern) promise.pattern = *options_.pattern;
    if (options_.axis) promise.axis = *options_.axis;
    promise.transposed = selection.is_transposed(tensor, found->second);
    return promise;
  }

  CheckedTensor check(const LogicalTensor& tensor, const Promise& promise) const {
    const TensorInfo& info = tensor.info;
    const StoredWeight weight{{info, tensor.shard}, promise.transposed};
    CheckedTensor result{info, promise, 0, {}, {}, {}, false};
    if (promise.axis != Axis::kOut) result.in.emplace();
    if (promise.axis != Axis::kIn) result.out.emplace();

    // With a row order, sharing rows may be anywhere: then the tensor is one band.
    const WeightShape whole = weight.shape();
    const auto order = read_row_order(files_, promise, whole.outs);
    const int64_t multiple =
        std::max<int64_t>(promise.pattern.block(), static_cast<int64_t>(order.size()));
    checkpoint_.for_each_band(tensor, promise.transposed, multiple, [&](const Band& band) {
      const WeightShape shape{band.rows, whole.ins, whole.taps};
      const Mask nonzero = nonzero_mask(info.dtype, band.bytes, band.rows, shape.cols());
      result.nonzero += nonzero.count();
      const auto add = [&](std::optional<GroupCount>& to, GroupCount part) {
        if (part.first_violation) part.first_violation->out += band.first_row;
        *to += part;
      };
      if (result.in) add(result.in, count_groups_in(nonzero, shape, promise.pattern, order));
      if (result.out) add(result.out, count_groups_out(nonzero, shape, promise.pattern, order));
    });
    judge(weight, result);
    return result;
  }

  void judge(const StoredWeight& weight, CheckedTensor& result) const {
    const auto look_at = [&](const std::optional<GroupCount>& count, Axis axis) {
      if (result.first_violation || !count || !count->first_violation) return;
      const WeightPosition& at = *count->first_violation;
      result.first_violation = {axis,
                                weight.index_of(at.out, at.in * weight.shape().taps + at.tap)};
    };
    look_at(result.in, Axis::kIn);
    look_at(result.out, Axis::kOut);
    result.obeys = !result.first_violation && !(options_.strict && result.short_groups() > 0);
  }

  const CheckOptions& options_;
  const Listener& listener_;
  Checkpoint files_;
  PackedCheckpoint checkpoint_;
  Sparsity sparsity_;
};

}  // namespace

int64_t CheckedTensor::short_groups() const {
  return (in ? in->short_groups : 0) + (out ? out->short_groups : 0);
}

double CheckedTensor::density() const {
  const int64_t weights = info.elements();
  return weights == 0 ? 1.0 : static_cast<double>(nonzero) / static_cast<double>(weights);
}

bool CheckReport::valid() const {
  return std::ranges::all_of(tensors, [](const CheckedTensor& tensor) { return tensor.obeys; });
}

std::optional<Pattern> CheckReport::common_pattern() const {
  const Pattern first = tensors.front().promise.pattern;
  for (const CheckedTensor& tensor : tensors) {
    if (tensor.promise.pattern != first) return std::nullopt;
  }
  return first;
}

CheckReport check_checkpoint(const CheckOptions& options, const Listener& listener) {
  return CheckpointChecker(options, listener).check();
}

}  // namespace weft
