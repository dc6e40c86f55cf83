// LinearLayer: the three products of a linear layer that trains (layer.h), dense or sparse as the
// planner says.
//
//   forward            y  = x W̃ᵀ + bias      x: [tokens, ins], y: [tokens, outs]
//   backward_data      dx = g W̃'             g: [tokens, outs]
//   backward_weight    dw = gᵀ x, or of a sample of gᵀ; zero where the mask of a masked gradient
//                      drops it              dw: [outs, ins], without gaps between its rows
//
// What is computed is the recipe's; how, dense or sparse, is the planner's. A sampled gradient is
// sampled either way, so that a run means the same on every machine.
//
// Activations are fp32 or bf16 (T is float or Bf16), as the precision of the layer says. In bf16 a
// sample of g is drawn in fp32 and rounded then; sums and dw are fp32.
//
// A product may be of some outputs only, with y, g and dw of those: a weight that has the projections
// of attention one below the other (q, k, v) can be given other inputs for each. State is that of the
// whole weight, packs are made of each part that is asked for. Parts that begin or end within a block
// of the pattern, where outputs depend on each other, and all parts of a layer with a row order, are
// computed dense.
#pragma once

#include <memory>
#include <vector>

#include "weft/kernel/masked/kept_entries.h"
#include "weft/layer/layer.h"

namespace weft {

class LinearLayer : public Layer {
 public:
  LinearLayer(int64_t outs, int64_t ins) : Layer({outs, ins, 1}, 1) { configure({}); }

  // weights: [outs, ins]; bias: [outs], or null. With `some`, `outs` above is some.count, and the
  // weights are whole all the same.
  template <typename T>
  void forward(const LayerWeights& weights, MatrixView<const T> x, const float* bias,
               MatrixView<T> y) {
    forward<T>(weights, x, bias, y, all());
  }
  template <typename T>
  void forward(const LayerWeights& weights, MatrixView<const T> x, const float* bias,
               MatrixView<T> y, const Outputs& some);
  template <typename T>
  void backward_data(const LayerWeights& weights, MatrixView<const T> g, MatrixView<T> dx) {
    backward_data<T>(weights, g, dx, all());
  }
  template <typename T>
  void backward_data(const LayerWeights& weights, MatrixView<const T> g, MatrixView<T> dx,
                     const Outputs& some);
  template <typename T>
  void backward_weight(const LayerWeights& weights, MatrixView<const T> g, MatrixView<const T> x,
                       const Pass& pass, MatrixView<float> dw) {
    backward_weight<T>(weights, g, x, pass, dw, all());
  }
  template <typename T>
  void backward_weight(const LayerWeights& weights, MatrixView<const T> g, MatrixView<const T> x,
                       const Pass& pass, MatrixView<float> dw, const Outputs& some);

 private:
  // What products of some outputs multiply with.
  struct Part {
    Outputs outs;
    Mask forward_mask, backward_mask;  // their rows of the layer's; empty: not cut yet
    WeightPack forward_pack{Product::kForward}, backward_pack{Product::kBackwardData};
    KeptOfMask kept;  // of a masked gradient

    void forget();
  };
  Part& part_of(const Outputs& some);
  bool can_pack(const Outputs& some) const;
  // For the planner: nothing if products of these outputs are dense.
  std::optional<Pattern> pattern_of(const Outputs& some, const Operands& own,
                                    const Operand& operand) const;
  bool is_all(const Part& part) const { return part.outs == all(); }
  // An operand of the layer, and the rows of its mask that belong to the part.
  Operand operand_of(const Part& part, const Operand& whole, Mask& mask) const;

  std::string kind() const override { return "linear"; }
  std::optional<LayerPlan> plan_for(const Pattern& pattern) override;
  void forget_inputs() override { tokens_ = 0; }
  void forget_packs() override;
  void free_packs() override;
  // Of activations of type T. pattern: nothing for an operand that is dense.
  template <typename T>
  std::optional<Request> request_at(int64_t tokens, const Outputs& outs,
                                    const std::optional<Pattern>& pattern,
                                    bool masked_gradient = false) const;
  // whole: the operand of the layer, with its values.
  template <typename T>
  void weight_product(LinearCall call, const Part& part, const Operand& whole, const float* values,
                      const Way& way, WeightPack& pack, Mask& mask, DenseCopy& copy);
  template <typename T>
  void dense_weight(MatrixView<const T> g, MatrixView<const T> x, const Way& way,
                    MatrixView<float> dw);
  template <typename T>
  void sampled_weight(MatrixView<const T> g, MatrixView<const T> x, const Sampling& sampling,
                      const Way& way, MatrixView<float> dw);
  template <typename T>
  void masked_weight(MatrixView<const T> g, MatrixView<const T> x, const Pattern& planned_as,
                     Part& part, const Way& way, MatrixView<float> dw);
  template <typename T>
  void compare_with_exact(const LayerWeights& weights, const Part& part, MatrixView<const T> g,
                          MatrixView<const T> dx);

  int64_t tokens_ = 0;  // of the last input, and the outputs that were asked for
  Outputs last_outs_;
  std::vector<std::unique_ptr<Part>> parts_;
  PackedMatrix gradient_panels_, gradient_pack_;
};

}  // namespace weft
