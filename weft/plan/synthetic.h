// Layers made of random numbers, to time the kernels with.
#pragma once

#include <optional>
#include <vector>

#include "weft/core/mask.h"
#include "weft/kernel/conv/pack_conv.h"
#include "weft/pack/pack.h"
#include "weft/plan/timings.h"

namespace weft {

// A full N:M mask whose kept positions are drawn at random (the same for rows that share).
Mask random_mask(int64_t rows, int64_t cols, const Pattern& pattern, uint64_t seed);

// Operands and results of one product, for both paths. In bf16 the numbers are such that
// fp32 has them exactly, so that activations() and operand() are what is multiplied.
class SyntheticProduct {
 public:
  SyntheticProduct(const ProductForm& form, const LayerShape& shape, const Pattern& pattern,
                   const Arithmetic& arithmetic = {});

  // False: tiles, and a pattern or product that they are not made for.
  bool has_sparse() const;
  void run_dense();  // a gradient that is masked is masked after the product
  void run_sparse();
  void pack();        // again, from the same weights and mask
  void pack_dense();  // likewise, where a dense operand is packed

  // Of the unpacked operand, W or G; for a masked gradient, of the result.
  const Mask& mask() const { return mask_; }
  MatrixView<const float> activations() const;
  MatrixView<const float> operand() const;
  // What ran last has left here; in bf16 only after expand_result().
  MatrixView<float> result();
  void expand_result();
  const PackedMatrix& packed() const { return packed_; }

 private:
  LinearCall call();  // without an operand
  AnyMatrix stored_operand() const;
  bool result_is_bf16() const;

  ProductForm form_;
  LayerShape shape_;
  Arithmetic arithmetic_;
  PanelOptions options_;
  std::vector<float> activations_, operand_, result_;
  std::vector<Bf16> activations16_, operand16_, result16_;  // if they are kept in bf16
  Mask mask_;
  PackedMatrix panels_, packed_;  // panels that tiles are made from
  DenseTiles dense_tiles_;
  std::optional<KeptEntries> kept_;
};

// The same for a convolution.
class SyntheticConv {
 public:
  SyntheticConv(const ProductForm& form, const ConvShape& shape, const Pattern& pattern);

  static bool has_sparse() { return true; }
  void run_dense();
  void run_sparse();
  void pack();
  static void pack_dense() {}

  void prune_operand();  // makes what the mask does not keep zero: then both paths agree
  // Of a gradient: packs a sample of it, as a training step does.
  void sample();

  const std::vector<float>& activations() const { return activations_; }
  const std::vector<float>& operand() const { return operand_; }
  std::vector<float>& result() { return result_; }

 private:
  ConvCall call();  // with the dense operand

  ProductForm form_;
  ConvShape shape_;
  PanelOptions options_;
  std::vector<float> activations_, operand_, result_;
  Mask mask_;
  PackedConv packed_, sampled_;
  std::optional<KeptEntries> kept_;
};

}  // namespace weft
