// Operands: what the products of one layer multiply with from one optimiser step to the next.
//
//   forward   W̃   [outs, cols]         backward  W̃, or the part of it that a backward mask keeps
//
// An operand is a mask on values, which come with every call. A product packs it, or copies it with
// its zeros written out, the first time in a step; later products of the step use the same copy.
// The memory of a pack is used again for the next one. In bf16, packs and copies are rounded; the
// values that they are made from stay fp32.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "weft/core/aligned_buffer.h"
#include "weft/core/bf16.h"
#include "weft/core/mask.h"
#include "weft/core/precision.h"
#include "weft/core/weight_shape.h"
#include "weft/kernel/kernels.h"
#include "weft/pack/dense_tiles.h"
#include "weft/pack/pack.h"

namespace weft {

// values: [outs, cols]; what the mask drops is not looked at.
struct Operand {
  const Mask* mask = nullptr;               // null: all of it counts
  Pattern pattern{1, 1};                    // of the rows of the pack
  bool ragged = false;                      // the mask is not N:M along the depth of the pack
  Precision precision = Precision::kFp32;   // of packs and dense copies
  std::span<const int64_t> row_order = {};  // of the rows of the pack; empty: not permuted

  double density() const { return mask == nullptr ? 1.0 : mask->density(); }
  PanelOptions pack_options(Precision compute = Precision::kFp32) const;
};

// The values with zeros where the mask drops them, as floats or bf16; the values themselves if they
// are floats and there is no mask.
class DenseCopy {
 public:
  void forget() { valid_ = false; }
  // Temporarily, the copy is in the other buffer.
  void swap(AlignedBuffer<float>& other) { std::swap(fp32_, other); }
  void swap(AlignedBuffer<Bf16>& other) { std::swap(bf16_, other); }
  template <typename T>
  const T* of(const Operand& operand, const float* values, const WeightShape& shape);

 private:
  template <typename T>
  AlignedBuffer<T>& copy();

  bool valid_ = false;  // the copy; a layer asks for one type of the two
  AlignedBuffer<float> fp32_;
  AlignedBuffer<Bf16> bf16_;
};

// The packs of a linear layer's operand that one of its products takes: W for the forward product,
// Wᵀ for backward data. Panels or tiles, as the arithmetic wants it; or tiles of all of it. Each is
// kept until forget(): a trial that takes turns packs once a step for each, as a run would.
class WeightPack {
 public:
  explicit WeightPack(Product product) : product_(product) {}

  void forget();
  bool has(bool sparse, Precision compute) const { return sparse ? of(compute).valid : tiled_; }
  const PackedMatrix& sparse(const Operand& operand, const float* values, const WeightShape& shape,
                             Precision compute);
  const DenseTiles& tiles(MatrixView<const Bf16> w);  // [outs, ins], with its zeros

 private:
  struct Sparse {
    bool valid = false;
    PackedMatrix pack;
  };
  const Sparse& of(Precision compute) const {
    return compute == Precision::kBf16 ? sparse_tiles_ : panels_;
  }

  Product product_;
  Sparse panels_, sparse_tiles_;
  PackedMatrix untiled_;  // panels that tiles are made from
  bool tiled_ = false;
  DenseTiles tiles_;
};

}  // namespace weft
