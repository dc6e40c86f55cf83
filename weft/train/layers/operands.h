// Operands: what the products of one layer multiply with from one optimiser step to the next.
//
//   forward   W̃   [outs, cols]         backward  W̃, or the part of it that a backward mask keeps
//
// An operand is values and a mask; packs, and dense copies with the zeros written out, are made
// when a product first asks for them, and kept until the next step. Memory is kept longer: the pack
// of a linear layer takes that of the last one.
#pragma once

#include <vector>

#include "weft/core/aligned_buffer.h"
#include "weft/core/mask.h"
#include "weft/core/weight_shape.h"
#include "weft/pack/pack.h"

namespace weft {

struct Operand {
  const float* values = nullptr;  // [outs, cols]; what the mask drops is not looked at
  const Mask* mask = nullptr;     // null: all of it counts
  Pattern pattern{1, 1};          // of the rows of the pack
  bool ragged = false;            // the mask is not N:M along the depth of the pack

  double density() const { return mask == nullptr ? 1.0 : mask->density(); }
  PanelOptions pack_options() const;
};

// The values with zeros where the mask drops them; the values themselves if there is no mask.
class DenseCopy {
 public:
  void forget() { valid_ = false; }
  const float* of(const Operand& operand, const WeightShape& shape);

 private:
  bool valid_ = false;
  AlignedBuffer<float> copy_;
};

}  // namespace weft
