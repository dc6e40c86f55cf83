#include "weft/plan/synthetic.h"

#include <algorithm>
#include <utility>

#include "weft/core/error.h"
#include "weft/core/masked_copy.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/panel/panel_size.h"
#include "weft/pack/tiles.h"

namespace weft {
namespace {

// A sequence that is quick and good enough for timing.
class Sequence {
 public:
  explicit Sequence(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15 + 1) {}
  uint64_t next() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return state_ >> 33;
  }

 private:
  uint64_t state_;
};

std::vector<float> random_values(int64_t count, uint64_t seed) {
  Sequence sequence(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = static_cast<float>(sequence.next() % 2001) / 1000.0f - 1.0f;
  return values;
}

// To bf16; what they were becomes what they are now.
std::vector<Bf16> rounded(std::vector<float>& values) {
  std::vector<Bf16> narrow(values.size());
  round_to_bf16(values.data(), static_cast<int64_t>(values.size()), narrow.data());
  expand(narrow.data(), static_cast<int64_t>(values.size()), values.data());
  return narrow;
}

struct Sides {
  int64_t activation_rows, activation_cols, operand_rows, operand_cols, result_rows, result_cols;
};

Sides sides(const ProductForm& form, const LayerShape& s) {
  switch (form.product) {
    case Product::kForward: return {s.tokens, s.ins, s.outs, s.ins, s.tokens, s.outs};
    case Product::kBackwardData: return {s.tokens, s.outs, s.outs, s.ins, s.tokens, s.ins};
    case Product::kBackwardWeight: return {s.tokens, s.ins, s.tokens, s.outs, s.outs, s.ins};
  }
  return {};
}

// Sets the bits of `part` at [row, col] of `whole`.
void put_part(const Mask& part, Mask& whole, int64_t row, int64_t col) {
  for (int64_t r = 0; r < part.rows(); ++r) {
    for (int64_t c = 0; c < part.cols(); c += 64) {
      const int width = static_cast<int>(std::min<int64_t>(64, part.cols() - c));
      whole.put_bits(row + r, col + c, width, part.bits(r, c, width));
    }
  }
}

// N:M along inputs or along outputs, each tap and group of channels for itself.
Mask random_filter_mask(const ConvShape& s, const Pattern& pattern, bool along_outs) {
  Mask mask(s.outs, s.taps() * s.group_ins());
  uint64_t seed = 3;
  for (int64_t g = 0; g < s.groups; ++g) {
    for (int64_t tap = 0; tap < s.taps(); ++tap, ++seed) {
      put_part(along_outs ? random_mask(s.group_ins(), s.group_outs(), pattern, seed).transposed()
                          : random_mask(s.group_outs(), s.group_ins(), pattern, seed),
               mask, g * s.group_outs(), tap * s.group_ins());
    }
  }
  return tensor_order(mask, s.weight_shape());
}

// N:M along the positions of each image.
Mask random_gradient_mask(const ConvShape& s, const Pattern& pattern) {
  Mask mask(s.outs, s.images * s.positions());
  uint64_t seed = 3;
  for (int64_t g = 0; g < s.groups; ++g) {
    for (int64_t image = 0; image < s.images; ++image, ++seed) {
      put_part(random_mask(s.group_outs(), s.positions(), pattern, seed), mask, g * s.group_outs(),
               image * s.positions());
    }
  }
  return mask;
}

}  // namespace

Mask random_mask(int64_t rows, int64_t cols, const Pattern& pattern, uint64_t seed) {
  Mask mask(rows, cols);
  const int group = pattern.group();
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t sharing = pattern.share() == 1 ? r : r / pattern.block() * group + r % group;
    Sequence sequence(seed + static_cast<uint64_t>(sharing) * 7919);
    for (int64_t c = 0; c < cols; c += group) {
      const int width = static_cast<int>(std::min<int64_t>(group, cols - c));
      int wanted = std::min(pattern.keep(), width);
      uint64_t bits = 0;
      for (int i = 0; wanted > 0; ++i) {  // each of the rest with equal chance
        if (static_cast<int>(sequence.next() % static_cast<uint64_t>(width - i)) < wanted) {
          bits |= uint64_t{1} << i;
          --wanted;
        }
      }
      mask.put_bits(r, c, width, bits);
    }
  }
  return mask;
}

SyntheticProduct::SyntheticProduct(const ProductForm& form, const LayerShape& shape,
                                   const Pattern& pattern, const Arithmetic& arithmetic)
    : form_(form), shape_(shape), arithmetic_(arithmetic), options_{pattern, {}} {
  shape.check();
  const Sides s = sides(form, shape);
  activations_ = random_values(s.activation_rows * s.activation_cols, 1);
  operand_ = random_values(s.operand_rows * s.operand_cols, 2);
  result_.resize(static_cast<size_t>(s.result_rows * s.result_cols));
  if (arithmetic.storage == Precision::kBf16) {
    activations16_ = rounded(activations_);
    operand16_ = rounded(operand_);
    result16_.resize(result_.size());
    options_.rounded = true;
    if (arithmetic.layout() != PackLayout::kPanel) options_.value_type = Precision::kBf16;
  }
  pack_dense();
  if (form.masked) {
    mask_ = random_mask(shape.outs, shape.ins, pattern, 3);
    pack();
    return;
  }
  const bool along_rows = form.product == Product::kForward || form.ragged;
  mask_ = along_rows ? random_mask(s.operand_rows, s.operand_cols, pattern, 3)
                     : random_mask(s.operand_cols, s.operand_rows, pattern, 3).transposed();
  if (form.ragged) {  // and nothing is shared along the other axis
    options_.pattern = Pattern(pattern.keep(), pattern.group());
    options_.ragged = true;
  }
  options_.tile = arithmetic.compute == Precision::kBf16 ? tile_panel(options_.pattern)
                                                         : tile_for(options_.pattern);
  if (has_sparse()) pack();
}

bool SyntheticProduct::has_sparse() const {
  return arithmetic_.compute == Precision::kFp32 || has_tile_product(form_, options_.pattern);
}

MatrixView<const float> SyntheticProduct::activations() const {
  const Sides s = sides(form_, shape_);
  return {activations_.data(), s.activation_rows, s.activation_cols};
}
MatrixView<const float> SyntheticProduct::operand() const {
  const Sides s = sides(form_, shape_);
  return {operand_.data(), s.operand_rows, s.operand_cols};
}
MatrixView<float> SyntheticProduct::result() {
  const Sides s = sides(form_, shape_);
  return {result_.data(), s.result_rows, s.result_cols};
}

bool SyntheticProduct::result_is_bf16() const {
  return arithmetic_.storage == Precision::kBf16 && form_.product != Product::kBackwardWeight;
}

void SyntheticProduct::expand_result() {
  if (!result_is_bf16()) return;
  expand(result16_.data(), static_cast<int64_t>(result_.size()), result_.data());
}

void SyntheticProduct::pack() {
  if (form_.masked) {
    kept_.emplace(mask_, options_.pattern);
    return;
  }
  if (arithmetic_.stream) {
    packed_ = pack_stream(operand(), mask_, options_.pattern, options_.value_type);
    return;
  }
  const bool tiles = arithmetic_.compute == Precision::kBf16;
  PackedMatrix& panels = tiles ? panels_ : packed_;
  panels = form_.product == Product::kForward
               ? pack_panels(operand(), mask_, options_, std::move(panels))
               : pack_panels_transposed(operand(), mask_, options_, std::move(panels));
  if (tiles) packed_ = tiles_of(panels_, std::move(packed_));
}

void SyntheticProduct::pack_dense() {
  if (arithmetic_.compute == Precision::kFp32) return;
  if (form_.product == Product::kBackwardWeight) return;  // in every product
  dense_tiles_.pack(operand(), /*transposed=*/form_.product == Product::kForward);
}

LinearCall SyntheticProduct::call() {
  LinearCall call;
  call.product = form_.product;
  call.activations = activations();
  call.result = result();
  if (arithmetic_.storage == Precision::kFp32) return call;
  const Sides s = sides(form_, shape_);
  call.activations =
      MatrixView<const Bf16>(activations16_.data(), s.activation_rows, s.activation_cols);
  if (result_is_bf16()) {
    call.result = MatrixView<Bf16>(result16_.data(), s.result_rows, s.result_cols);
  }
  return call;
}

AnyMatrix SyntheticProduct::stored_operand() const {
  if (arithmetic_.storage == Precision::kFp32) return operand();
  const Sides s = sides(form_, shape_);
  return MatrixView<const Bf16>(operand16_.data(), s.operand_rows, s.operand_cols);
}

void SyntheticProduct::run_dense() {
  LinearCall dense = call();
  dense.dense = stored_operand();
  const bool packed =
      arithmetic_.compute == Precision::kBf16 && form_.product != Product::kBackwardWeight;
  if (packed) dense.tiles = &dense_tiles_;
  multiply(dense, arithmetic_.compute);
  if (form_.masked) {
    masked_copy(result_.data(), mask_, result_.data());
  }
}

void SyntheticProduct::run_sparse() {
  LinearCall sparse = call();
  if (form_.masked) {
    sparse.dense = stored_operand();
    sparse.kept = &*kept_;
  } else {
    sparse.packed = &packed_;
  }
  multiply(sparse, arithmetic_.compute);
}

SyntheticConv::SyntheticConv(const ProductForm& form, const ConvShape& shape,
                             const Pattern& pattern)
    : form_(form), shape_(shape), options_{pattern, {}} {
  shape.check();
  const Product product = form.product;
  const int64_t x = shape.x_size(), w = shape.w_size(), y = shape.y_size();
  activations_ = random_values(product == Product::kBackwardData ? y : x, 1);
  operand_ = random_values(product == Product::kBackwardWeight ? y : w, 2);
  result_.resize(static_cast<size_t>(product == Product::kForward        ? y
                                     : product == Product::kBackwardData ? x
                                                                         : w));
  mask_ =
      form.packs_gradient()
          ? random_gradient_mask(shape, pattern)
          : random_filter_mask(shape, pattern, product == Product::kBackwardData && !form.ragged);
  if (form.ragged) {  // and nothing is shared along the other axis
    options_.pattern = Pattern(pattern.keep(), pattern.group());
    options_.ragged = true;
  }
  options_.tile = form.packs_gradient()
                      ? conv_gradient_tile_for(options_.pattern, shape.group_ins())
                      : conv_tile_for(mask_.density(), options_.pattern.share(), shape.taps());
  pack();
}

void SyntheticConv::pack() {
  if (form_.masked) {
    kept_.emplace(mask_, options_.pattern, shape_.taps());
    return;
  }
  switch (form_.product) {
    case Product::kForward:
      packed_ = pack_conv(operand_.data(), mask_, shape_, options_, std::move(packed_));
      break;
    case Product::kBackwardData:
      packed_ = pack_conv_transposed(operand_.data(), mask_, shape_, options_, std::move(packed_));
      break;
    case Product::kBackwardWeight:
      packed_ = pack_conv_gradient(operand_.data(), mask_, shape_, options_);
      break;
  }
}

void SyntheticConv::sample() {
  WEFT_CHECK(form_.packs_gradient(), "{} samples nothing", form_.name());
  SampleOptions options{.pattern = options_.pattern};
  sampled_ =
      pack_conv_sampled(operand_.data(), shape_, options, options_.tile, {}, std::move(sampled_));
}

void SyntheticConv::prune_operand() {
  if (form_.masked) return;  // the result is masked, not an operand
  // A mask of G has the positions of all images in one row; in G the images come first.
  const bool gradient = form_.product == Product::kBackwardWeight;
  const int64_t run = gradient ? shape_.positions() : mask_.cols();
  for (int64_t i = 0; i < static_cast<int64_t>(operand_.size()); ++i) {
    const int64_t image = gradient ? i / run / shape_.outs : 0;
    if (!mask_.at(i / run % shape_.outs, image * run + i % run))
      operand_[static_cast<size_t>(i)] = 0;
  }
}

ConvCall SyntheticConv::call() {
  ConvCall call;
  call.product = form_.product;
  call.shape = shape_;
  call.activations = activations_.data();
  call.dense = operand_.data();
  call.result = result_.data();
  return call;
}

void SyntheticConv::run_dense() {
  multiply(call());
  if (form_.masked) masked_copy(result_.data(), mask_, result_.data());
}

void SyntheticConv::run_sparse() {
  ConvCall sparse = call();
  if (form_.masked) {
    sparse.kept = &*kept_;
  } else {
    sparse.packed = &packed_;
  }
  multiply(sparse);
}

}  // namespace weft
