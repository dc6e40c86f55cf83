// Layer: a linear or convolution layer that trains by a recipe, as a torch module.
//
//   forward     y  = x W̃ᵀ + b            W̃: the forward operand of the recipe
//   backward    dx = g W̃'                W̃': its backward operand
//               dW = (a sample of) gᵀ x   straight through: the gradient of W̃ is that of W
//               db = the sum of g
//
// Two paths, one meaning. fp32 weights on the CPU run on weft's kernels, with operands packed once
// per optimiser step; any other dtype or device runs the same recipe with torch's operators on
// masked operands. path() says which.
//
// With precision bf16, x, y, g and dx are bf16, and so are what is kept of x for the backward pass
// and the values that W̃ and W̃' are packed as. Weights, the bias, dW and db are fp32, and so are all
// sums: y is rounded once, with its bias. An fp32 input is rounded; y is bf16 whatever x was.
//
// The weights belong to the optimiser, and torch does not say when it has changed them. So steps
// are taken through weft (step.h): it adds the decay, steps the optimiser, and brings every layer
// up to date. Weights that change in another way are noticed at the next product, by a sample of
// them, and refused; after loading or editing them on purpose, say so with weights_changed().
//
// A *training pass* is a forward pass with gradients enabled, of a module in training mode. The
// first one of a step makes what is due at that step (recipe/layer_state.h: refresh); any other
// pass, effective_weight() and whatever is saved use what is there. A step that no training pass
// came before, of a module in evaluation mode or with gradients made by hand, does it at its end.
//
// State (masks, permutation, row order, alive subsets, β, counters) is in buffers, and is saved and
// loaded with the module. A state of another recipe or pattern is refused.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "weft/core/precision.h"
#include "weft/layer/products.h"
#include "weft/plan/planner.h"
#include "weft/recipe/best_combination.h"
#include "weft/recipe/layer_state.h"

namespace weft {

enum class LayerPath : uint8_t { kPacked, kPlain };
std::string_view path_name(LayerPath path);  // "packed", "plain"

struct LayerSettings {
  Recipe recipe = Recipe::parse("dense");
  Pattern pattern{2, 4};
  Precision precision = Precision::kFp32;  // of operands and activations
  int64_t total_steps = 0;  // of the optimiser; needed by recipes with a schedule in shares
  uint64_t seed = 0;
  int64_t number = 0;  // of the layer in the model: tells its random numbers from those of others
  std::string label;   // its name in the model, for messages
  int micro_batches = 1;  // per optimiser step, for the planner
  // Of a data-parallel run: each replica draws samples of its own.
  int64_t replica = 0;
  int64_t replicas = 1;
  bool force_plain = false;
  bool telemetry = false;            // keep what flip rates need
  std::shared_ptr<Planner> planner;  // null: one of its own
};

// What a layer did since the last step. Free unless asked for.
struct LayerTelemetry {
  double forward_density = 1.0;
  double backward_density = 1.0;
  double retained = 1.0;                       // Σ |w| that the forward mask keeps, of all
  std::optional<double> retained_as_rows_lie;  // the same without the row order, if there is one
  int64_t changed_bits = 0;      // of the forward mask, in the last step; with telemetry only
  double flip_rate = 0.0;        // changed bits / weights
  double backward_kept = 1.0;    // share of the forward operand's entries in the backward one
  double alive = 0.0;            // lbc: mean number of candidates of a group
  double beta = 1.0;             // s-ste
  std::optional<double> cosine;  // bi-mask, with telemetry: of the last dX to the exact one
  LayerTimes times;
  std::string plan;  // "sparse/sparse/dense", in the order of kProducts; "plain" on the plain path
};

class Layer : public torch::nn::Module {
 public:
  torch::Tensor weight;
  torch::Tensor bias;    // undefined: none
  torch::Tensor scores;  // of lbc: [cells, groups, candidates]; undefined otherwise

  virtual torch::Tensor forward(const torch::Tensor& x) = 0;

  // Starts anew with a recipe. Throws Error if the recipe, the pattern and the shape do not go
  // together.
  void configure(const LayerSettings& settings);
  const LayerSettings& settings() const { return settings_; }
  // Dense by recipe, or because keep = group.
  bool always_dense() const;

  virtual WeightShape weight_shape() const = 0;
  virtual int64_t channel_groups() const { return 1; }  // of a convolution
  // Empty, or why a layer of this shape cannot have this recipe and pattern.
  static std::string objection(const WeightShape& shape, int64_t channel_groups,
                               const Recipe& recipe, const Pattern& pattern);
  LayerPath path() const;
  const LayerState& state() const { return state_; }

  // W̃ as it is now, in the dtype and on the device of the weight: what an evaluation computes with.
  torch::Tensor effective_weight();

  // The parts of a step (step.h): the decay, the count, and what follows from new weights.
  void add_decay(double learning_rate);
  void count_step();
  void bring_up_to_date();
  // The weights have been loaded or edited: masks and packs are made anew. The step stays, and so
  // do the choices that a recipe never takes back: β, removed candidates, a fixed mask. Nothing
  // happens before the first product, or effective_weight(): until then nothing has been chosen.
  void weights_changed();
  // Whether a product has been prepared from the weights as they are now (by a sample of them).
  bool prepared_for_weights() const;

  // Rows are to share by this order, which comes with the weights of a trained model. Before the
  // first product, or effective_weight().
  void give_row_order(std::vector<int64_t> order);

  // `retained` looks at every weight; without `costly` it is left out, as 1.
  LayerTelemetry telemetry(bool costly = true);
  void clear_times();  // and the cosine
  // The cosine of bi-mask takes another, plain product per backward pass.
  void measure_cosine(bool measure) { measure_cosine_ = measure; }

  // How the three products run while the layer is sparse, for inputs as large as the last ones;
  // nothing if it is always dense, on the plain path, or has seen no input yet.
  std::optional<LayerPlan> sparse_plan();

  // The first layer whose product is not finite while one of these is in scope, of this thread.
  class FiniteWatch {
   public:
    FiniteWatch();
    ~FiniteWatch();
    FiniteWatch(const FiniteWatch&) = delete;
    FiniteWatch& operator=(const FiniteWatch&) = delete;
    const std::string& first() const { return first_; }  // empty: none

   private:
    friend class Layer;
    std::string first_;
  };

  // Shows what goes into layers while one of these is in scope, of this thread. Inputs are rows of
  // samples, [n, columns of the weight]: of a convolution, what the kernel sees at each position.
  class InputWatch {
   public:
    using See = std::function<void(const Layer& layer, const std::function<torch::Tensor()>& rows)>;
    explicit InputWatch(See see);
    ~InputWatch();
    InputWatch(const InputWatch&) = delete;
    InputWatch& operator=(const InputWatch&) = delete;

   private:
    friend class Layer;
    See see_;
  };

  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // After something else than load() has written into the buffers.
  void state_changed();
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

 protected:
  explicit Layer(std::string name) : torch::nn::Module(std::move(name)) {}
  // To be called once weight and bias are there.
  void register_state();

  virtual void reset_products(std::shared_ptr<Planner> planner, int micro_batches) = 0;
  virtual LayerProducts& products() = 0;

  // y for x, with custom autograd.
  torch::Tensor run(const torch::Tensor& input);

 private:
  friend class LayerFunction;

  // The products of a subclass, on either path. x and g are contiguous.
  virtual torch::Tensor packed_forward(const torch::Tensor& x) = 0;
  virtual torch::Tensor packed_backward_data(const torch::Tensor& g, const torch::Tensor& x) = 0;
  virtual torch::Tensor packed_backward_weight(const torch::Tensor& g, const torch::Tensor& x,
                                               const std::optional<Sampling>& sampling) = 0;
  // On the plain path operands are of one dtype, in which the product is computed.
  virtual torch::Tensor plain_forward(const torch::Tensor& x, const torch::Tensor& w) = 0;
  virtual torch::Tensor plain_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                            const torch::Tensor& w) = 0;
  virtual torch::Tensor plain_backward_weight(const torch::Tensor& g, const torch::Tensor& x) = 0;
  virtual torch::Tensor bias_gradient(const torch::Tensor& g) const = 0;  // dtype of the weights
  virtual torch::Tensor rows_of(const torch::Tensor& x) const = 0;        // see InputWatch
  // 1/π of what a sample of g keeps, 0 elsewhere. g: fp32, on the CPU, contiguous.
  virtual torch::Tensor sample_scales_of(const torch::Tensor& g,
                                         const SampleOptions& options) const = 0;

  torch::Tensor forward_product(const torch::Tensor& x);
  torch::Tensor backward_data_product(const torch::Tensor& g, const torch::Tensor& x);
  torch::Tensor backward_weight_product(const torch::Tensor& g, const torch::Tensor& x,
                                        int64_t call);
  torch::Tensor score_gradient(const torch::Tensor& dw) const;

  // Before a product: operands that match the weights.
  void prepare(bool training);
  void make_operands();  // from the state
  void make_packed_operands();
  void describe_operands(LayerOperands& operands) const;
  Pattern operand_pattern() const;
  enum class Occasion : uint8_t { kStep, kTrainingPass, kReplaced };
  void update(Occasion occasion);
  void begin_training_pass();
  void forget_operands();
  void require_same_weights() const;
  void reset_scores();
  std::string state_owner() const;
  // For messages: the name in the model, or the kind of layer.
  std::string label() const { return settings_.label.empty() ? name() : settings_.label; }
  bool in_bf16() const { return settings_.precision == Precision::kBf16; }
  // The dtype of activations and of the operands of the plain path.
  torch::Dtype product_type() const { return in_bf16() ? torch::kBFloat16 : weight.scalar_type(); }
  torch::Tensor host_weights() const;  // fp32, on the CPU, contiguous
  LayerInput input_of(const float* weights) const;
  torch::Tensor plain_operand(const Mask& mask) const;
  double retained_as_rows_lie(const torch::Tensor& host) const;
  std::optional<Sampling> sampling(int64_t call) const;
  void freeze_scores_at_the_end();  // and thaw them before it
  void store_state();
  void restore_state();

  LayerSettings settings_;
  LayerState state_;
  int64_t stamp_ = 0;  // of the operands; changes when they do
  bool operands_valid_ = false;
  bool measure_cosine_ = true;
  bool step_pending_ = false;   // counted, and the state not yet brought up to date
  bool training_pass_ = false;  // there was one since the last step
  bool refresh_owed_ = false;   // there was none before that step
  uint64_t fingerprint_ = 0;    // of the weights that the operands were made from
  const void* data_ = nullptr;  // where these lay
  AlignedBuffer<float> forward_values_, backward_values_;  // where they are not the weights
  torch::Tensor plain_forward_, plain_backward_;           // the operands of the plain path
  int64_t refreshed_bits_ = 0;  // that a refresh has changed in this step
  int64_t changed_bits_ = 0;    // in the last step
  std::optional<double> cosine_;
  torch::Tensor saved_mask_, saved_backward_mask_, saved_permutation_, saved_row_order_,
      saved_alive_, saved_counters_;  // the buffers
};

// Every layer of a module once, with its (first) name; the module itself may be one.
std::vector<std::pair<std::string, std::shared_ptr<Layer>>> layers_of(torch::nn::Module& module);

}  // namespace weft
