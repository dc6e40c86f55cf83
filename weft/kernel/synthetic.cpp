#include "weft/kernel/synthetic.h"

#include <algorithm>
#include <utility>

#include "weft/kernel/sparse.h"

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

struct Sides {
  int64_t activation_rows, activation_cols, operand_rows, operand_cols, result_rows, result_cols;
};

Sides sides(ProductKind kind, const LayerShape& s) {
  switch (product_of(kind)) {
    case Product::kForward: return {s.tokens, s.ins, s.outs, s.ins, s.tokens, s.outs};
    case Product::kBackwardData: return {s.tokens, s.outs, s.outs, s.ins, s.tokens, s.ins};
    case Product::kBackwardWeight: return {s.tokens, s.ins, s.tokens, s.outs, s.outs, s.ins};
  }
  return {};
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

SyntheticProduct::SyntheticProduct(ProductKind kind, const LayerShape& shape,
                                   const Pattern& pattern)
    : kind_(kind), shape_(shape), options_{pattern, {}} {
  shape.check();
  const Sides s = sides(kind, shape);
  activations_ = random_values(s.activation_rows * s.activation_cols, 1);
  operand_ = random_values(s.operand_rows * s.operand_cols, 2);
  result_.resize(static_cast<size_t>(s.result_rows * s.result_cols));
  const bool along_rows = kind == ProductKind::kForward || kind == ProductKind::kBackwardDataRagged;
  mask_ = along_rows ? random_mask(s.operand_rows, s.operand_cols, pattern, 3)
                     : random_mask(s.operand_cols, s.operand_rows, pattern, 3).transposed();
  if (kind == ProductKind::kBackwardDataRagged) {  // and nothing is shared along the other axis
    options_.pattern = Pattern(pattern.keep(), pattern.group());
    options_.ragged = true;
  }
  options_.tile = tile_for(options_.pattern);
  pack();
}

MatrixView<const float> SyntheticProduct::activations() const {
  const Sides s = sides(kind_, shape_);
  return {activations_.data(), s.activation_rows, s.activation_cols};
}
MatrixView<const float> SyntheticProduct::operand() const {
  const Sides s = sides(kind_, shape_);
  return {operand_.data(), s.operand_rows, s.operand_cols};
}
MatrixView<float> SyntheticProduct::result() {
  const Sides s = sides(kind_, shape_);
  return {result_.data(), s.result_rows, s.result_cols};
}

void SyntheticProduct::pack() {
  packed_ = kind_ == ProductKind::kForward
                ? pack_panels(operand(), mask_, options_, std::move(packed_))
                : pack_panels_transposed(operand(), mask_, options_, std::move(packed_));
}

void SyntheticProduct::run_dense() {
  LinearCall call;
  call.product = product_of(kind_);
  call.activations = activations();
  call.dense = operand();
  call.result = result();
  multiply(call);
}

void SyntheticProduct::run_sparse() {
  LinearCall call;
  call.product = product_of(kind_);
  call.activations = activations();
  call.packed = &packed_;
  call.result = result();
  multiply(call);
}

}  // namespace weft
