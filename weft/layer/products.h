// The three products of one layer on the CPU, dense or sparse as the planner says.
//
//   products.set(operands)           once per optimiser step
//   products.forward(...)            y  = x W̃ᵀ + bias
//   products.backward_data(...)      dx = g W̃'
//   products.backward_weight(...)    dw = gᵀ x, or of a sample of gᵀ; zero where the mask of a
//                                    masked gradient drops it
//
// What is computed is the recipe's; how, dense or sparse, is the planner's. A sampled gradient is
// sampled either way, so that a run means the same on every machine.
//
// Activations are fp32 or bf16 (T is float or Bf16), as the precision of the operands says. In bf16
// a sample of g is drawn in fp32 and rounded then; sums and dw are fp32.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "weft/estimate/fp8.h"
#include "weft/estimate/mvue.h"
#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/conv/sparse_conv.h"
#include "weft/kernel/masked/masked_weight.h"
#include "weft/layer/operands.h"
#include "weft/plan/planner.h"

namespace weft {

struct LayerOperands {
  Operand forward;
  Operand backward;
  bool transposable = false;  // the backward operand is N:M along outputs
  // The pattern that stands for the density of the forward operand in the planner's model.
  Pattern planned{1, 1};
  // Of the gradient of the weights, only what the forward mask keeps is wanted.
  bool masked_gradient = false;
};

// How dw is sampled, if it is.
struct Sampling {
  SampleOptions options;
  std::optional<Fp8> rounding;  // of the sampled values
};

// Seconds since they were last cleared.
struct LayerTimes {
  double mask = 0.0;
  double pack = 0.0;                 // or writing the zeros out, for a dense product
  std::array<double, 3> products{};  // in the order of kProducts, without packing weights
};

// What linear and convolution layers have in common: operands, plans, times.
class LayerProducts {
 public:
  // products_per_pack: micro-batches per optimiser step, for the planner; at least 1 (weights that
  // never change would be planned as streams, and panels are packed here).
  LayerProducts(const WeightShape& shape, std::shared_ptr<Planner> planner, int products_per_pack)
      : shape_(shape), products_per_pack_(products_per_pack), planner_(std::move(planner)) {}
  virtual ~LayerProducts() = default;

  void set(const LayerOperands& operands);

  LayerTimes& times() { return times_; }
  // How the products run with a pattern, for inputs as large as the last ones; nothing before the
  // first.
  virtual std::optional<LayerPlan> plan_for(const Pattern& pattern, bool transposable,
                                            bool masked_gradient) = 0;
  // How the products were last computed: "sparse/sparse/dense", in the order of kProducts; "-" for
  // one that was not.
  std::string choices() const;

 protected:
  // The packs of the weights are no longer those of the operands.
  virtual void forget_packs() = 0;

  // How a product is computed: dense or sparse, in which arithmetic.
  struct Way {
    bool sparse = false;
    Compute compute = Compute::kFp32;
  };
  // As the planner has it. Asked once per shape: `key` names it.
  template <typename Request>
  Way planned(const std::string& key, const Request& request, Product product);
  void note(Product product, const Way& way);
  template <typename T>
  const T* dense_copy(DenseCopy& copy, const Operand& operand);

  Planner& planner() { return *planner_; }

  WeightShape shape_;
  LayerOperands operands_;
  DenseCopy dense_forward_, dense_backward_;
  LayerTimes times_;
  int products_per_pack_;
  std::array<std::string, 3> choices_ = {"-", "-", "-"};

 private:
  std::shared_ptr<Planner> planner_;
  std::map<std::string, LayerPlan> plans_;  // by shape and pattern
};

class LinearProducts : public LayerProducts {
 public:
  using LayerProducts::LayerProducts;

  std::optional<LayerPlan> plan_for(const Pattern& pattern, bool transposable,
                                    bool masked_gradient) override;
  template <typename T>
  void forward(MatrixView<const T> x, const float* bias, MatrixView<T> y);
  template <typename T>
  void backward_data(MatrixView<const T> g, MatrixView<T> dx);
  template <typename T>
  void backward_weight(MatrixView<const T> g, MatrixView<const T> x,
                       const std::optional<Sampling>& sampling, MatrixView<float> dw);

 private:
  void forget_packs() override;
  template <typename T>
  void masked_weight(MatrixView<const T> g, MatrixView<const T> x, MatrixView<float> dw);
  // Of activations of type T. pattern: nothing for an operand that is dense.
  template <typename T>
  Way way_at(int64_t tokens, Product product, const std::optional<Pattern>& pattern,
             bool masked_gradient = false);
  template <typename T>
  void weight_product(LinearCall call, const Operand& w, int64_t tokens, WeightPack& pack,
                      DenseCopy& copy);
  template <typename T>
  void dense_weight(MatrixView<const T> g, MatrixView<const T> x, const Way& way,
                    MatrixView<float> dw);
  template <typename T>
  void sampled_weight(MatrixView<const T> g, MatrixView<const T> x, const Sampling& sampling,
                      MatrixView<float> dw);

  int64_t tokens_ = 0;               // of the last input
  std::optional<KeptEntries> kept_;  // of a masked gradient
  WeightPack forward_pack_{Product::kForward}, backward_pack_{Product::kBackwardData};
  PackedMatrix gradient_panels_, gradient_pack_;
};

// Activations are [images, channels, height, width]; the shape comes with every call.
class ConvProducts : public LayerProducts {
 public:
  using LayerProducts::LayerProducts;

  std::optional<LayerPlan> plan_for(const Pattern& pattern, bool transposable,
                                    bool masked_gradient) override;
  template <typename T>
  void forward(const ConvShape& shape, const T* x, const float* bias, T* y);
  template <typename T>
  void backward_data(const ConvShape& shape, const T* g, T* dx);
  template <typename T>
  void backward_weight(const ConvShape& shape, const T* g, const T* x,
                       const std::optional<Sampling>& sampling, float* dw);

 private:
  void forget_packs() override { packed_forward_ = packed_backward_ = false; }
  Way way_at(const ConvShape& shape, Product product, const Pattern& pattern);

  ConvShape last_;  // input
  bool packed_forward_ = false, packed_backward_ = false;
  PackedConv forward_pack_, backward_pack_, gradient_pack_;
};

}  // namespace weft
