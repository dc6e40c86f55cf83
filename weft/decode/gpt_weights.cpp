#include "weft/decode/gpt_weights.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/kernel/kernels.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/pack/pack.h"
#include "weft/pack/packed_file.h"

namespace weft {
namespace {

using Shape = std::vector<int64_t>;

// From how many tokens on panels are faster than a stream, at widths of 256 and 768 on a Zen 3:
// they took 0.8 to 1.1 of its time with 12 tokens, 1.2 to 1.8 with 8.
constexpr int64_t kManyTokensPacked = 12;

// Hands out tensors by name, each checked; knows which were never asked for.
class TensorReader {
 public:
  TensorReader(const Checkpoint& checkpoint, const GptWeightOptions& options)
      : file_(checkpoint.paths().front().string()), packed_(checkpoint), options_(options) {
    for (const LogicalTensor& tensor : packed_.tensors()) tensors_[tensor.info.name] = &tensor;
    const Sparsity sparsity = checkpoint.sparsity();
    sparsity.require_outs_first(file_);
    for (const auto& [name, promise] : sparsity.tensors) {
      asked_.insert(promise.row_order);
      if (promise.axis != Axis::kOut) patterns_.emplace(name, promise.without_row_order());
    }
    for (const auto& [name, pattern] : options.patterns) patterns_.insert_or_assign(name, pattern);
  }

  // The sizes of a matrix; the model fixes one of them, or none (0).
  Shape matrix_shape(const std::string& name, int64_t rows, int64_t cols) {
    const LogicalTensor& tensor = find(name);
    const Shape& shape = tensor.info.shape;
    const auto fits = [](int64_t size, int64_t wanted) {
      return wanted == 0 ? size >= 1 : size == wanted;
    };
    const auto text = [](int64_t wanted) {
      return wanted == 0 ? std::string("1 or more") : std::to_string(wanted);
    };
    WEFT_CHECK(shape.size() == 2 && fits(shape[0], rows) && fits(shape[1], cols),
               "{} has shape {}, accepted is [{}, {}]", name_of(tensor), shape_text(shape),
               text(rows), text(cols));
    return shape;
  }

  std::vector<float> values(const std::string& name, const Shape& shape) {
    const LogicalTensor& tensor = checked(name, shape);
    std::vector<float> values(static_cast<size_t>(tensor.info.elements()));
    const std::vector<std::byte> bytes = packed_.dense(tensor);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  NormWeights norm(const std::string& name, int64_t width) {
    return {values(name + ".weight", {width}), values(name + ".bias", {width})};
  }

  LinearWeights linear(const std::string& layer, int64_t outs, int64_t ins, bool has_bias = true) {
    const std::string name = layer + ".weight";
    const LogicalTensor& tensor = checked(name, {outs, ins});
    WEFT_CHECK(!tensor.transposed(), "{} is packed as stored [ins, outs], accepted is [outs, ins]",
               name_of(tensor));
    matrices_.insert(name);
    std::vector<float> bias;
    if (has_bias) bias = values(layer + ".bias", {outs});
    if (!options_.dense && std::holds_alternative<LogicalTensor::Weft>(tensor.source)) {
      return {packed_.matrix(tensor), std::move(bias)};
    }
    const std::vector<std::byte> bytes = packed_.dense(tensor);
    AlignedBuffer<float> w(bytes.size() / sizeof(float));
    std::memcpy(w.data(), bytes.data(), bytes.size());
    const auto pattern = tensor.packed() ? tensor.pattern() : pattern_of(name);
    if (options_.dense || !pattern) return {std::move(w), outs, ins, std::move(bias)};
    try {
      const MaskToPack kept = mask_to_pack(tensor.info, bytes, *pattern);
      return {pack_stream({w.data(), outs, ins}, kept.mask, *pattern, Precision::kFp32),
              std::move(bias)};
    } catch (const Error& error) {
      throw Error(fmt::format("{}: it is to be packed as {}: {}", name_of(tensor), pattern->str(),
                              error.what()));
    }
  }

  // One more than the largest <i> of the names blocks.<i>.*; at least 1.
  int64_t depth() const {
    constexpr std::string_view kPrefix = "blocks.";
    int64_t depth = 1;
    for (const auto& [name, tensor] : tensors_) {
      if (!name.starts_with(kPrefix)) continue;
      int32_t block = 0;
      const char* end = name.data() + name.size();
      const auto number = std::from_chars(name.data() + kPrefix.size(), end, block);
      if (number.ec == std::errc() && number.ptr != end && *number.ptr == '.' && block >= 0) {
        depth = std::max(depth, int64_t{block} + 1);
      }
    }
    return depth;
  }

  void require_nothing_else() const {
    for (const auto& [name, tensor] : tensors_) {
      WEFT_CHECK(asked_.contains(name), "{} is not a tensor of a byte-level GPT", name_of(*tensor));
    }
    for (const auto& [name, pattern] : options_.patterns) {
      WEFT_CHECK(matrices_.contains(name),
                 "{}: '{}' is to be packed as {}, but is not a matrix of the model", file_,
                 printable(name), pattern.str());
    }
  }

 private:
  std::string name_of(const LogicalTensor& tensor) const {
    return fmt::format("{}: tensor '{}'", packed_.file_of(tensor), printable(tensor.info.name));
  }

  const LogicalTensor& find(const std::string& name) {
    const auto found = tensors_.find(name);
    WEFT_CHECK(found != tensors_.end(), "{}: tensor '{}' is missing: a byte-level GPT has it",
               file_, name);
    const LogicalTensor& tensor = *found->second;
    WEFT_CHECK(tensor.info.dtype == Dtype::kF32, "{} is {}, accepted is F32", name_of(tensor),
               dtype_name(tensor.info.dtype));
    asked_.insert(name);
    return tensor;
  }

  const LogicalTensor& checked(const std::string& name, const Shape& shape) {
    const LogicalTensor& tensor = find(name);
    WEFT_CHECK(tensor.info.shape == shape, "{} has shape {}, accepted is {}", name_of(tensor),
               shape_text(tensor.info.shape), shape_text(shape));
    return tensor;
  }

  std::optional<Pattern> pattern_of(const std::string& name) const {
    const auto found = patterns_.find(name);
    return found == patterns_.end() ? std::nullopt : std::optional(found->second);
  }

  std::string file_;
  PackedCheckpoint packed_;
  const GptWeightOptions& options_;
  std::map<std::string, const LogicalTensor*> tensors_;
  std::map<std::string, Pattern> patterns_;
  std::set<std::string> asked_, matrices_;
};

GptBlock read_block(TensorReader& reader, const std::string& name, const GptShape& shape) {
  const int64_t width = shape.width, hidden = shape.hidden;
  NormWeights norm1 = reader.norm(name + ".norm1", width);
  LinearWeights qkv = reader.linear(name + ".attention.qkv", 3 * width, width);
  LinearWeights proj = reader.linear(name + ".attention.proj", width, width);
  NormWeights norm2 = reader.norm(name + ".norm2", width);
  LinearWeights fc1 = reader.linear(name + ".fc1", hidden, width);
  LinearWeights fc2 = reader.linear(name + ".fc2", width, hidden);
  return {std::move(norm1), std::move(qkv), std::move(proj),
          std::move(norm2), std::move(fc1), std::move(fc2)};
}

template <typename Visit>
void for_each_matrix(const GptWeights& weights, Visit visit) {
  for (const GptBlock& block : weights.blocks) {
    for (const LinearWeights* linear : {&block.qkv, &block.proj, &block.fc1, &block.fc2}) {
      visit(*linear);
    }
  }
  visit(weights.head);
}

}  // namespace

LinearWeights::LinearWeights(PackedMatrix w, std::vector<float> bias) : bias_(std::move(bias)) {
  const Unpacked whole = unpack(w);
  const MatrixView<const float> values(whole.values.data(), w.rows(), w.depth());
  PanelOptions options{w.pattern(), tile_for(w.pattern())};
  options.value_type = w.value_type();
  PackedMatrix panels = pack_panels(values, whole.mask, options);
  w_ = Packed{std::move(w), std::move(panels)};
}

LinearWeights::LinearWeights(AlignedBuffer<float> w, int64_t outs, int64_t ins,
                             std::vector<float> bias)
    : w_(Dense{std::move(w), outs, ins}), bias_(std::move(bias)) {}

uint64_t LinearWeights::bytes() const {
  if (const auto* packed = std::get_if<Packed>(&w_)) return packed->stream.bytes().size();
  return std::get<Dense>(w_).values.size() * sizeof(float);
}

void LinearWeights::forward(MatrixView<const float> x, float beta, MatrixView<float> y) const {
  LinearCall call;
  call.activations = x;
  if (const auto* packed = std::get_if<Packed>(&w_)) {
    call.packed = x.rows < kManyTokensPacked ? &packed->stream : &packed->panels;
  } else {
    const Dense& dense = std::get<Dense>(w_);
    call.dense = MatrixView<const float>(dense.values.data(), dense.outs, dense.ins);
  }
  call.bias = bias_.empty() ? nullptr : bias_.data();
  call.beta = beta;
  call.result = y;
  multiply(call);
}

uint64_t GptWeights::matrix_bytes() const {
  uint64_t sum = 0;
  for_each_matrix(*this, [&](const LinearWeights& linear) { sum += linear.bytes(); });
  return sum;
}

int64_t GptWeights::packed_matrices() const {
  int64_t count = 0;
  for_each_matrix(*this, [&](const LinearWeights& linear) { count += linear.packed(); });
  return count;
}

GptWeights read_gpt(const Checkpoint& checkpoint, int64_t heads, const GptWeightOptions& options) {
  TensorReader reader(checkpoint, options);
  GptShape shape;
  shape.width = reader.matrix_shape("tokens.weight", GptShape::kTokens, 0)[1];
  shape.context = reader.matrix_shape("positions.weight", 0, shape.width)[0];
  shape.hidden = reader.matrix_shape("blocks.0.fc1.weight", 0, shape.width)[0];
  shape.depth = reader.depth();
  shape.heads = heads;
  WEFT_CHECK(heads >= 1 && shape.width % heads == 0,
             "{}: {} heads: accepted are those that divide the width, {}",
             checkpoint.paths().front().string(), heads, shape.width);

  std::vector<float> tokens = reader.values("tokens.weight", {GptShape::kTokens, shape.width});
  std::vector<float> positions = reader.values("positions.weight", {shape.context, shape.width});
  std::vector<GptBlock> blocks;
  for (int64_t i = 0; i < shape.depth; ++i) {
    blocks.push_back(read_block(reader, fmt::format("blocks.{}", i), shape));
  }
  NormWeights norm = reader.norm("norm", shape.width);
  LinearWeights head = reader.linear("head", GptShape::kTokens, shape.width, false);
  reader.require_nothing_else();
  return {shape,           std::move(tokens), std::move(positions), std::move(blocks),
          std::move(norm), std::move(head)};
}

}  // namespace weft
