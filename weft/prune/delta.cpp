#include "weft/prune/delta.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/core/weight_shape.h"
#include "weft/prune/elements.h"

namespace weft {
namespace {

constexpr std::string_view kPeftPrefix = "base_model.model.";

// What a file of deltas has for one tensor, as far as it was read.
struct DeltaParts {
  const ShardedTensor* full = nullptr;
  const ShardedTensor* a = nullptr;
  const ShardedTensor* b = nullptr;
};

struct LoraName {
  std::string layer;  // with PEFT's prefix, if it has it
  const ShardedTensor* DeltaParts::*part;
};

std::optional<LoraName> parse_lora_name(std::string_view name) {
  for (const std::string_view ending : {".default.weight", ".default", ".weight", ""}) {
    for (const bool is_a : {true, false}) {
      const std::string whole = fmt::format(".lora_{}{}", is_a ? 'A' : 'B', ending);
      if (!name.ends_with(whole)) continue;
      name.remove_suffix(whole.size());
      return LoraName{std::string(name), is_a ? &DeltaParts::a : &DeltaParts::b};
    }
  }
  return std::nullopt;
}

using TensorsByName = std::map<std::string_view, const ShardedTensor*>;

std::string without_peft_prefix(const std::string& name) {
  return name.starts_with(kPeftPrefix) ? name.substr(kPeftPrefix.size()) : name;
}

// The tensor that a LoRA factor changes: its name with PEFT's prefix, if there is such a tensor, or
// without; or without the name of the model that its class has and files of the plain model lack.
std::string lora_target(const TensorsByName& base, const std::string& layer) {
  const std::string whole = layer + ".weight", target = without_peft_prefix(whole);
  if (base.contains(whole)) return whole;
  if (base.contains(target) || target == whole) return target;
  const std::string plain = target.substr(target.find('.') + 1);
  return base.contains(plain) ? plain : target;
}

// [rows, cols] -> [cols, rows]
std::vector<double> transposed_matrix(const std::vector<double>& from, int64_t rows, int64_t cols) {
  std::vector<double> to(from.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      to[static_cast<size_t>(c * rows + r)] = from[static_cast<size_t>(r * cols + c)];
    }
  }
  return to;
}

class DeltaMatcher {
 public:
  DeltaMatcher(const Checkpoint& base, const Checkpoint& deltas, const DeltaRules& rules)
      : base_(base), deltas_(deltas), rules_(rules) {
    for (const ShardedTensor& tensor : base.tensors()) by_name_[tensor.info.name] = &tensor;
  }

  std::map<std::string, Delta> match() {
    for (const ShardedTensor& tensor : deltas_.tensors()) add(tensor);
    std::map<std::string, Delta> matched;
    for (const auto& [name, parts] : parts_) matched[name] = whole(*by_name_.at(name), parts);
    return matched;
  }

 private:
  void add(const ShardedTensor& tensor) {
    const std::string& name = tensor.info.name;
    const auto lora = parse_lora_name(name);
    WEFT_CHECK(lora || !rules_.peft,
               "{}: is not a LoRA factor: weft merges the LoRA pairs of an adapter with {}, but no "
               "biases and no modules_to_save",
               place_of(deltas_, tensor), rules_.peft->name());
    if (by_name_.contains(name)) return put(name, &DeltaParts::full, tensor);
    WEFT_CHECK(lora || !name.starts_with(kPeftPrefix),
               "{}: is not a LoRA factor, and PEFT stores whole weights under this prefix, not "
               "deltas: store the difference from the base under the name of the base tensor",
               place_of(deltas_, tensor));
    const std::string target = lora ? lora_target(by_name_, lora->layer) : name;
    WEFT_CHECK(lora && by_name_.contains(target), "{}: changes nothing: {} has no tensor '{}'",
               place_of(deltas_, tensor), base_.paths().front().string(), printable(target));
    put(target, lora->part, tensor);
  }

  void put(const std::string& target, const ShardedTensor* DeltaParts::*part,
           const ShardedTensor& tensor) {
    WEFT_CHECK(is_weight_dtype(tensor.info.dtype), "{}: dtype {}: deltas are F32, F16, BF16 or F64",
               place_of(deltas_, tensor), dtype_name(tensor.info.dtype));
    const ShardedTensor*& slot = parts_[target].*part;
    WEFT_CHECK(slot == nullptr, "{}: '{}' is the same factor for '{}': accepted is one of them",
               place_of(deltas_, tensor), printable(slot->info.name), printable(target));
    slot = &tensor;
  }

  Delta whole(const ShardedTensor& target, const DeltaParts& parts) const {
    WEFT_CHECK(is_weight_dtype(target.info.dtype),
               "{}: dtype {}: a delta can be added to F32, F16, BF16 or F64",
               place_of(base_, target), dtype_name(target.info.dtype));
    const ShardedTensor* factor = parts.a != nullptr ? parts.a : parts.b;
    if (factor == nullptr) return whole_full(target, *parts.full);
    WEFT_CHECK(parts.full == nullptr,
               "{}: a full delta, but '{}' is a LoRA factor for the same tensor: accepted is one "
               "of them",
               place_of(deltas_, *parts.full), printable(factor->info.name));
    WEFT_CHECK(parts.a != nullptr && parts.b != nullptr, "{}: its lora_{} is missing",
               place_of(deltas_, *factor), parts.a == nullptr ? 'A' : 'B');
    return whole_lora(target, *parts.a, *parts.b);
  }

  Delta whole_full(const ShardedTensor& target, const ShardedTensor& full) const {
    WEFT_CHECK(full.info.shape == target.info.shape, "{}: shape {}, but '{}' of {} has {}",
               place_of(deltas_, full), shape_text(full.info.shape), printable(target.info.name),
               base_.file_of(target), shape_text(target.info.shape));
    return {full, std::nullopt};
  }

  Delta whole_lora(const ShardedTensor& target, const ShardedTensor& a,
                   const ShardedTensor& b) const {
    const std::vector<int64_t>& dims = target.info.shape;
    WEFT_CHECK(WeightShape::accepts(dims),
               "{}: changes '{}' of shape {}: LoRA is for 2 or 4 "
               "dimensions",
               place_of(deltas_, a), printable(target.info.name), shape_text(dims));
    const int64_t rank = a.info.shape.empty() ? 0 : a.info.shape[0];
    WEFT_CHECK(rank >= 1, "{}: shape {}: a LoRA factor has a rank of 1 or more",
               place_of(deltas_, a), shape_text(a.info.shape));
    const StoredWeight weight{target, is_stored_ins_first(target, a, b)};
    const WeightShape shape = shape_of(weight);
    std::vector<int64_t> unfolded = weight.dims();
    unfolded[0] = rank;
    require_shape(target, a, {rank, shape.cols()}, unfolded);
    require_shape(target, b, {shape.outs, rank},
                  dims.size() == 4 ? std::vector<int64_t>{shape.outs, rank, 1, 1}
                                   : std::vector<int64_t>{shape.outs, rank});
    return {std::nullopt, Delta::Lora{a, b, rank, scale_of(a, rank), weight.transposed}};
  }

  double scale_of(const ShardedTensor& a, int64_t rank) const {
    if (rules_.scale) return *rules_.scale;
    if (!rules_.peft) return 1;
    return rules_.peft->scale_of(without_peft_prefix(parse_lora_name(a.info.name)->layer), rank);
  }

  // What is known of the base counts, and the adapter's word. That is one for all of its layers,
  // and wrong for those of another class: PEFT does not believe it of a Linear, nor does weft where
  // the shape is that of one.
  bool is_stored_ins_first(const ShardedTensor& target, const ShardedTensor& a,
                           const ShardedTensor& b) const {
    const std::vector<int64_t>& dims = target.info.shape;
    const bool known = rules_.is_transposed && rules_.is_transposed(target.info);
    WEFT_CHECK(
        !known || dims.size() == 2,
        "{}: changes '{}', which is stored [ins, outs, kh, kw]: LoRA of such convolutions is "
        "not merged",
        place_of(deltas_, a), printable(target.info.name));
    if (known || !rules_.peft || !rules_.peft->fan_in_fan_out()) return known;
    const bool fits_linear =
        dims.size() != 2 || (a.info.shape.size() == 2 && b.info.shape.size() == 2 &&
                             b.info.shape[0] == dims[0] && a.info.shape[1] == dims[1]);
    return dims.size() == 2 && (!fits_linear || dims[0] == dims[1]);
  }

  void require_shape(const ShardedTensor& target, const ShardedTensor& factor,
                     const std::vector<int64_t>& flat, const std::vector<int64_t>& unfolded) const {
    const std::vector<int64_t>& shape = factor.info.shape;
    if (shape == flat || shape == unfolded) return;
    throw Error(
        fmt::format("{}: shape {}, but for '{}' of {} accepted is {}{}", place_of(deltas_, factor),
                    shape_text(shape), printable(target.info.name), shape_text(target.info.shape),
                    shape_text(flat), flat == unfolded ? "" : " or " + shape_text(unfolded)));
  }

  WeightShape shape_of(const StoredWeight& target) const {
    try {
      return target.shape();
    } catch (const Error& error) {
      throw Error(fmt::format("{}: {}", place_of(base_, target.tensor), error.what()));
    }
  }

  const Checkpoint& base_;
  const Checkpoint& deltas_;
  const DeltaRules& rules_;
  TensorsByName by_name_;                    // of the base
  std::map<std::string, DeltaParts> parts_;  // by the name in the base
};

}  // namespace

std::map<std::string, Delta> match_deltas(const Checkpoint& base, const Checkpoint& deltas,
                                          const DeltaRules& rules) {
  return DeltaMatcher(base, deltas, rules).match();
}

DeltaRows::DeltaRows(const Checkpoint& deltas, const Delta& delta, bool transposed)
    : deltas_(deltas), delta_(delta), transposed_(transposed) {
  WEFT_CHECK(delta.full.has_value() != delta.lora.has_value(),
             "a delta is either full or a LoRA pair");
  if (!delta_.lora) return;
  const Delta::Lora& lora = *delta_.lora;
  const int64_t ins = lora.a.info.elements() / lora.rank, outs = lora.b.info.elements() / lora.rank;
  swapped_ = lora.transposed != transposed;
  cols_ = swapped_ ? outs : ins;
  right_ = read_finite_elements(deltas_, lora.a, 0, lora.a.info.elements());
  if (!swapped_) return;
  left_ = transposed_matrix(right_, lora.rank, ins);
  right_ = transposed_matrix(read_finite_elements(deltas_, lora.b, 0, lora.b.info.elements()), outs,
                             lora.rank);
}

std::vector<double> DeltaRows::read(int64_t first_row, int64_t rows) const {
  if (delta_.lora) {
    const int64_t rank = delta_.lora->rank, first = first_row * rank, count = rows * rank;
    if (!swapped_)
      return product(read_finite_elements(deltas_, delta_.lora->b, first, count), rows);
    return product({left_.begin() + first, left_.begin() + first + count}, rows);
  }
  if (transposed_) {
    return read_finite_outs(deltas_, StoredWeight{*delta_.full, true}, first_row, rows);
  }
  const TensorInfo& info = delta_.full->info;
  const int64_t all_rows = info.shape.empty() ? 1 : info.shape[0];
  const int64_t length = all_rows == 0 ? 0 : info.elements() / all_rows;
  return read_finite_elements(deltas_, *delta_.full, first_row * length, rows * length);
}

// Every element is one sum over the rank in its order, whatever the threads. A tile of the right
// factor is used for several rows while it is in the cache.
std::vector<double> DeltaRows::product(const std::vector<double>& left, int64_t rows) const {
  constexpr int64_t kRows = 16, kCols = 256;
  const int64_t rank = delta_.lora->rank;
  std::vector<double> d(static_cast<size_t>(rows * cols_));
  parallel_for((rows + kRows - 1) / kRows, [&](int64_t item) {
    const int64_t end = std::min(rows, (item + 1) * kRows);
    for (int64_t c = 0; c < cols_; c += kCols) {
      const int64_t count = std::min(kCols, cols_ - c);
      for (int64_t r = item * kRows; r < end; ++r) {
        double* to = d.data() + r * cols_ + c;
        for (int64_t k = 0; k < rank; ++k) {
          const double factor = left[static_cast<size_t>(r * rank + k)];
          const double* from = right_.data() + k * cols_ + c;
          for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
        }
        for (int64_t i = 0; i < count; ++i) to[i] *= delta_.lora->scale;
      }
    }
  });
  return d;
}

}  // namespace weft
