// Layer: a linear or convolution layer that trains by a recipe, on plain pointers.
//
//   forward     y  = x W̃ᵀ + b            W̃: the forward operand of the recipe
//   backward    dx = g W̃'                W̃': its backward operand
//               dW = (a sample of) gᵀ x   straight through: the gradient of W̃ is that of W
//
// This is the part that linear_layer.h and conv_layer.h have in common: which recipe, its state,
// the operands that follow from weights and state, plans, times. A framework owns the tensors and
// calls it, in this order for every optimiser step:
//
//   begin_pass(weights, training)       masks that are due
//   pass = next_pass()                  of every micro-batch, which sample it draws
//   forward, backward_data, backward_weight(..., pass), score_gradient
//   add_decay(...)                      after clipping; then the optimiser moves the weights
//   count_step(), bring_up_to_date(weights)
//
// A product before the first begin_pass, or between count_step and bring_up_to_date, is an Error.
//
// Weights come with every call, at whatever address they then have, and no pointer to them is kept.
// But what was packed of them is, until bring_up_to_date, weights_changed or forget_operands says
// that they are other ones: the caller says so, nothing here looks whether they are the same.
//
// A *training pass* is one with training = true. The first one of a step makes what is due at that
// step (recipe/layer_state.h: refresh); any other pass uses what is there. A step that no training
// pass came before does it at its end.
//
// With precision bf16, x, y, g and dx are bf16, and so are the values that W̃ and W̃' are packed
// as. Weights, bias and dW are fp32, and so are all sums. The gradient of the bias, the sum of g,
// is left to the framework.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "weft/core/precision.h"
#include "weft/estimate/fp8.h"
#include "weft/estimate/mvue.h"
#include "weft/layer/operands.h"
#include "weft/layer/state_arrays.h"
#include "weft/plan/planner.h"
#include "weft/recipe/layer_state.h"

namespace weft {

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
  bool force_plain = false;          // for adapters that have another path (torch/layer_module.h)
  bool telemetry = false;            // keep what flip rates need
  std::shared_ptr<Planner> planner;  // null: one of its own
};

// The weights of one call.
struct LayerWeights {
  const float* values = nullptr;       // [outs, cols]
  std::span<const float> scores = {};  // of recipes that learn some
  // Instead of the values, once the layer has a mask that stays: only what it keeps
  // (pack/compact.h). They are expanded when operands are made. Gradients stay [outs, cols];
  // compact() takes what belongs to these.
  const float* compact = nullptr;
  // W̃ from outside, [outs, cols], instead of the recipe's: for a caller that has computed it
  // already. Entries that the mask drops are not read.
  const float* operand = nullptr;

  LayerWeights() = default;
  LayerWeights(const float* values, std::span<const float> scores = {})
      : values(values), scores(scores) {}
};

// Which pass it is, for its random numbers.
struct Pass {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t call = 0;  // use of the layer within the step: micro-batch, or tied use
  // Of its tokens in the whole batch: at the beginning of a group, of a convolution at that of an
  // image, whose positions are tokens.
  int64_t first_token = 0;
};

// Some outputs of a layer, one after the other: rows of its weight.
struct Outputs {
  int64_t first = 0, count = 0;
  friend bool operator==(const Outputs&, const Outputs&) = default;
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

  double& of(Product product) { return products[static_cast<size_t>(product)]; }
};

// What a layer did since the last step. Free unless asked for.
struct LayerTelemetry {
  double forward_density = 1.0;
  double backward_density = 1.0;
  double retained = 1.0;                      // Σ |w| that the forward mask keeps, of all
  std::optional<double> retained_unpermuted;  // the same without the row order, if there is one
  int64_t changed_bits = 0;     // of the forward mask, in the last step; with telemetry only
  double flip_rate = 0.0;       // changed bits / weights
  double backward_kept = 1.0;   // share of the forward operand's entries in the backward one
  std::vector<Figure> figures;  // of the parts of the recipe: "alive" of lbc, "beta" of s-ste
  // With a backward mask and telemetry: of the last dX to the exact one.
  std::optional<double> cosine;
  LayerTimes times;
  // In the order of kProducts; nothing for a product that was not computed.
  std::array<std::optional<Way>, 3> products;
  std::array<bool, 3> chosen{};  // the planner had decided on that way
  bool measured = false;         // products were computed on every way, for the planner

  double figure(std::string_view name) const;  // 0 if there is none of that name
  std::string plan_text() const;               // "sparse/dense/-"
};

class Layer {
 public:
  Layer(const WeightShape& shape, int64_t channel_groups);
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  // Empty, or why a layer of this shape cannot have this recipe and pattern.
  static std::string objection(const WeightShape& shape, int64_t channel_groups,
                               const Recipe& recipe, const Pattern& pattern);
  // Starts over with a recipe. Throws Error if the recipe, the pattern and the shape do not go
  // together.
  void configure(const LayerSettings& settings);
  const LayerSettings& settings() const { return settings_; }
  const Recipe& recipe() const { return settings_.recipe; }
  const WeightShape& shape() const { return shape_; }
  Outputs all() const { return {0, shape_.outs}; }
  int64_t channel_groups() const { return channel_groups_; }
  // Dense by recipe, or because keep = group.
  bool always_dense() const;
  // For messages: the name in the model in quotes, or the kind of layer.
  std::string label() const {
    return settings_.label.empty() ? kind() : fmt::format("'{}'", settings_.label);
  }
  const LayerState& state() const { return state_; }
  std::optional<ScoreRow::Shape> score_shape() const;  // of recipes that learn some
  void first_scores(std::span<float> scores) const;
  bool trains_scores() const;  // false: nothing is left to learn, they must not move any more

  // ---- a step
  // Whether the pass begins with new masks; if not, begin_pass needs no weights.
  bool is_due(bool training) const;
  void begin_pass(const LayerWeights& weights, bool training);
  Pass next_pass() { return {state_.seed, state_.step, state_.call++, 0}; }
  void add_decay(float* weights, float* gradient, double learning_rate) const;
  void add_decay(double* weights, double* gradient, double learning_rate) const;
  void count_step();
  void bring_up_to_date(const LayerWeights& weights);
  // The weights have been loaded or edited: masks and packs are made again. The step stays, and so
  // do the choices that a recipe never takes back: β, removed candidates, a fixed mask. Nothing
  // happens before the first pass: until then nothing has been chosen.
  void weights_changed(const LayerWeights& weights);

  // Of the products from here on. Operands are rounded and packed again; state and stamp stay, so
  // the passes of a step may differ in it.
  void set_precision(Precision precision);

  // The next product makes its operands again.
  void forget_operands();
  // Changes with the operands: what was computed under another stamp belongs to other weights.
  int64_t stamp() const { return stamp_; }

  // W̃ [outs, cols], as the state has it; zero outside its mask.
  void effective_values(const float* weights, float* out) const;
  void effective_values(const double* weights, double* out) const;
  // How the gradient of this pass is sampled; nothing: it is not. group: of tokens, the first one.
  std::optional<Sampling> sampling(const Pass& pass, int64_t first_group) const;
  Pattern sample_pattern() const { return recipe().sample_pattern(settings_.pattern); }
  // d_scores: [score_shape()], overwritten.
  void score_gradient(const float* weights, const float* dw, float* d_scores) const;
  void score_gradient(const double* weights, const double* dw, double* d_scores) const;

  // ---- choices from outside
  // Rows are to share by this order, which comes with the weights of a trained model. Before the
  // first pass.
  void give_row_order(std::vector<int64_t> order);
  // The mask that the layer has from here until its recipe finds another; a recipe with a fixed
  // mask keeps it. In the sparse phase, or before the first pass of a recipe that begins with it.
  // Throws Error unless it obeys the pattern, or if the recipe has more to choose than this mask
  // (scores, a backward mask, values of its own).
  void give_mask(Mask mask);

  // ---- what it did, and its state
  // weights: for `retained`, which looks at all of them; null: it is left out, as 1.
  LayerTelemetry telemetry(const float* weights) const;
  void clear_times();  // and the cosine
  // The cosine of a backward mask takes another, dense product per backward pass.
  void measure_cosine(bool measure) { measure_cosine_ = measure; }
  // How the three products run while the layer is sparse, for inputs as large as the last ones, as
  // far as that is decided; nothing if it is always dense, or has seen no input yet.
  std::optional<LayerPlan> sparse_plan();

  std::vector<StateArray> save_state() const;
  // Throws Error, and changes nothing, if it is malformed or of another recipe or pattern.
  void load_state(std::span<const StateArray> arrays);

 protected:
  virtual std::string kind() const = 0;  // "linear"
  virtual void forget_inputs() = 0;      // how large the last ones were
  // The packs of the weights are no longer those of the operands.
  virtual void forget_packs() = 0;
  virtual void free_packs() = 0;  // and their memory
  // How the products run with a pattern, for inputs as large as the last ones, as far as that is
  // decided; nothing before the first.
  virtual std::optional<LayerPlan> plan_for(const Pattern& pattern) = 0;

  // The operands of the weights as they are; made when the first product of a step asks.
  struct Operands {
    Operand forward, backward;
    // The pattern that stands for the density of the forward operand in the planner's model.
    Pattern planned{1, 1};
    // Of the gradient of the weights, only what the forward mask keeps is wanted.
    bool masked_gradient = false;

    // For the planner: nothing if the operand is dense.
    std::optional<Pattern> pattern_of(const Operand& operand) const {
      return operand.mask == nullptr ? std::nullopt : std::optional(planned);
    }
  };
  // T: of the activations.
  template <typename T>
  const Operands& operands(const LayerWeights& weights);
  // What a product multiplies with: the weights, or values of their own.
  const float* forward_operand(const LayerWeights& weights) const;
  const float* backward_operand(const LayerWeights& weights) const;

  // Computes a product as the planner says: run(way, result) does. While the planner measures,
  // every way is taken in turn, into other memory, and one result is copied from there.
  // request: nothing if there is nothing to decide, and the product is dense.
  using Request = std::variant<PlanRequest, ConvRequest>;
  template <typename T>
  using Run = std::function<void(const Way& way, MatrixView<T> result)>;
  template <typename T>
  void compute(Product product, const std::optional<Request>& request, MatrixView<T> result,
               const Run<T>& run);
  void note(Product product, const Way& way, bool chosen = true) {
    ways_[static_cast<size_t>(product)] = way;
    chosen_[static_cast<size_t>(product)] = chosen;
  }
  template <typename T>
  const T* dense_copy(DenseCopy& copy, const Operand& operand, const float* values);
  Planner& planner() { return *settings_.planner; }
  // Products per packing of the weights, for the planner.
  int products_per_pack() const { return settings_.micro_batches; }

  bool wants_cosine(const LayerWeights& weights) const {
    return settings_.telemetry && measure_cosine_ && state_.backward.rows() > 0 &&
           weights.values != nullptr;
  }
  void set_cosine(double cosine) { cosine_ = cosine; }

  LayerTimes times_;
  DenseCopy dense_forward_, dense_backward_;

 private:
  // What this layer has measured in a step, for the planner.
  struct Measured {
    Request request;
    Product product;
    int calls = 0;           // micro-batches, tied uses
    std::vector<double> ms;  // of each contestant, in all of them
  };
  Measured& measured_of(const Request& request, Product product, size_t contestants);
  Route route_of(const Request& request, Product product);
  void hand_over_times();
  template <typename T>
  void take_turns(const Route& route, Measured& measured, MatrixView<T> result, const Run<T>& run);
  template <typename T>
  void give_back_copy();

  enum class Occasion : uint8_t { kStep, kTrainingPass, kReplaced };
  void update(const LayerWeights& weights, Occasion occasion);
  LayerInput input_of(const LayerWeights& weights) const;
  void make_values(const LayerWeights& weights);
  void describe(Operands& operands) const;
  Pattern operand_pattern() const;
  double retained_unpermuted(const float* weights) const;
  std::string state_owner() const;
  StateShape state_shape() const;
  void make_operands(const LayerWeights& weights);
  bool keeps_more(int64_t step) const;
  // Error, with the context, unless a forward mask obeys the pattern.
  void require_pattern(const Mask& mask, const std::vector<int64_t>& row_order,
                       const std::string& context) const;

  WeightShape shape_;
  int64_t channel_groups_;
  LayerSettings settings_;
  LayerState state_;
  int64_t stamp_ = 0;
  bool operands_valid_ = false;
  Operands operands_;
  AlignedBuffer<float> forward_values_, backward_values_;
  bool own_values_ = false;           // the operands are not the weights, but in these
  bool own_backward_values_ = false;  // in the second
  bool measure_cosine_ = true;
  bool step_pending_ = false;   // counted, and the state not yet brought up to date
  bool training_pass_ = false;  // there was one since the last step
  bool refresh_owed_ = false;   // there was none before that step
  int64_t refreshed_bits_ = 0;  // that a refresh has changed in this step
  int64_t changed_bits_ = 0;    // in the last step
  std::optional<double> cosine_;
  std::array<std::optional<Way>, 3> ways_;
  std::array<bool, 3> chosen_{};
  bool measured_step_ = false;         // since the times were cleared
  bool passing_for_training_ = false;  // the pass that was begun last
  bool training_pass_seen_ = false;    // since the layer was configured

  std::vector<Measured> measured_;
  bool has_measured_ = false;      // so that some packs are of ways that were not chosen
  bool borrows_ = false;           // dense copies are made in memory of the planner's
  DenseCopy* borrower_ = nullptr;  // that has it
};

}  // namespace weft
