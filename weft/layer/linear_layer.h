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
#pragma once

#include "weft/kernel/masked/kept_entries.h"
#include "weft/layer/layer.h"

namespace weft {

class LinearLayer : public Layer {
 public:
  LinearLayer(int64_t outs, int64_t ins) : Layer({outs, ins, 1}, 1) { configure({}); }

  // weights: [outs, ins]; bias: [outs], or null
  template <typename T>
  void forward(const LayerWeights& weights, MatrixView<const T> x, const float* bias,
               MatrixView<T> y);
  template <typename T>
  void backward_data(const LayerWeights& weights, MatrixView<const T> g, MatrixView<T> dx);
  template <typename T>
  void backward_weight(const LayerWeights& weights, MatrixView<const T> g, MatrixView<const T> x,
                       const Pass& pass, MatrixView<float> dw);

 private:
  std::string kind() const override { return "linear"; }
  std::optional<LayerPlan> plan_for(const Pattern& pattern) override;
  void forget_inputs() override { tokens_ = 0; }
  void forget_packs() override;
  void free_packs() override;
  // Of activations of type T. pattern: nothing for an operand that is dense.
  template <typename T>
  std::optional<Request> request_at(int64_t tokens, const std::optional<Pattern>& pattern,
                                    bool masked_gradient = false) const;
  template <typename T>
  void weight_product(LinearCall call, const Operand& w, const float* values, const Way& way,
                      WeightPack& pack, DenseCopy& copy);
  template <typename T>
  void dense_weight(MatrixView<const T> g, MatrixView<const T> x, const Way& way,
                    MatrixView<float> dw);
  template <typename T>
  void sampled_weight(MatrixView<const T> g, MatrixView<const T> x, const Sampling& sampling,
                      const Way& way, MatrixView<float> dw);
  template <typename T>
  void masked_weight(MatrixView<const T> g, MatrixView<const T> x, const Pattern& planned_as,
                     const Way& way, MatrixView<float> dw);
  template <typename T>
  void compare_with_exact(const LayerWeights& weights, MatrixView<const T> g,
                          MatrixView<const T> dx);

  int64_t tokens_ = 0;               // of the last input
  std::optional<KeptEntries> kept_;  // of a masked gradient
  WeightPack forward_pack_{Product::kForward}, backward_pack_{Product::kBackwardData};
  PackedMatrix gradient_panels_, gradient_pack_;
};

}  // namespace weft
