// LayerModule: a layer that trains by a recipe (layer/layer.h), as a torch module.
//
// The module owns the tensors: the weight, the bias, scores, and the state of the layer in buffers,
// which are saved and loaded with it. layer_function.h has the formula of its autograd.
//
// Two paths, one meaning. fp32 weights on the CPU run on weft's kernels, with operands packed once
// per optimiser step; any other dtype or device runs the same recipe with torch's operators on
// masked operands. path() says which.
//
// The weights belong to the optimiser, and torch does not say when it has changed them. So steps
// are taken through weft (step.h): it adds the decay, steps the optimiser, and brings every layer
// up to date. Weights that change in another way are noticed at the next product, by a sample of
// them, and refused; after loading or editing them on purpose, say so with weights_changed().
//
// A training pass, which is when masks change that come every few steps, is a forward pass with
// gradients enabled, of a module in training mode. An fp32 input of a layer in bf16 is rounded; y is
// bf16 whatever x was.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "weft/layer/layer.h"

namespace weft {

class BatchShare;

// The child of a torch layer that computes for it (sparsify.h).
inline constexpr const char* kAttached = "weft";

enum class LayerPath : uint8_t { kPacked, kPlain };
std::string_view path_name(LayerPath path);  // "packed", "plain"

class LayerModule : public torch::nn::Module {
 public:
  torch::Tensor weight;
  torch::Tensor bias;  // undefined: none
  torch::Tensor
      scores;  // [cells, groups, candidates] of recipes that learn some; undefined otherwise
  // What follows the name of the layer in the name of its weight: "_weight" of "attention.in_proj".
  std::string weight_suffix = ".weight";

  virtual torch::Tensor forward(const torch::Tensor& x) = 0;

  // Starts over with a recipe. Throws Error if the recipe, the pattern and the shape do not go
  // together.
  void configure(const LayerSettings& settings);
  // Starts over with the recipe that it has, as after configure: the weights are other ones, and
  // nothing that was chosen for those before is to stay. Scores begin again in their place.
  void begin_again();
  // Whether it has begun again because the last load() found weights without a state of its recipe.
  bool began_again() const { return began_again_; }
  virtual Layer& layer() = 0;
  virtual const Layer& layer() const = 0;
  const LayerSettings& settings() const { return layer().settings(); }
  const LayerState& state() const { return layer().state(); }
  bool always_dense() const { return layer().always_dense(); }
  WeightShape weight_shape() const { return layer().shape(); }
  LayerPath path() const;

  // W̃ as it is now, in the dtype and on the device of the weight: what an evaluation computes with.
  torch::Tensor effective_weight();

  // The parts of a step (step.h): the decay, the count, and what follows from new weights.
  void add_decay(double learning_rate);
  void count_step() { layer().count_step(); }
  void bring_up_to_date();
  // The weights have been loaded or edited: see Layer.
  void weights_changed();
  // The gradient of the scores, from that of the weights: after gradients were summed over ranks.
  void follow_weight_gradient();
  // Of an input. Throws Error if a rank's share of the batch cuts a group that is sampled together.
  int64_t tokens_per_sample(const torch::Tensor& x, const BatchShare& share) const;
  // Whether a product has been prepared from the weights as they are now (by a sample of them).
  bool prepared_for_weights() const;
  // See Layer. Before the first product, or effective_weight().
  void give_row_order(std::vector<int64_t> order);

  // `retained` looks at every weight; without `costly` it is left out, as 1.
  LayerTelemetry telemetry(bool costly = true);
  std::string plan_text();  // "sparse/sparse/dense", or "plain"
  void clear_times();       // and the cosine
  void measure_cosine(bool measure);
  // See Layer; nothing on the plain path.
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
    friend class LayerModule;
    std::string first_;
  };

  // Shows what goes into layers while one of these is in scope, of this thread. Inputs are rows of
  // samples, [n, columns of the weight]: of a convolution, what the kernel sees at each position.
  class InputWatch {
   public:
    using See =
        std::function<void(const LayerModule& layer, const std::function<torch::Tensor()>& rows)>;
    explicit InputWatch(See see);
    ~InputWatch();
    InputWatch(const InputWatch&) = delete;
    InputWatch& operator=(const InputWatch&) = delete;

   private:
    friend class LayerModule;
    See see_;
  };

  // load() takes weights without a state too, of torch::nn::Linear or of a layer that was dense.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
  // Only for load_archive.h, which finds that an archive has nothing for this layer.
  void begin_again_after_load();
  // After something else than load() has written into the buffers.
  void state_changed();
  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Dtype dtype, bool non_blocking = false) override;
  void to(torch::Device device, bool non_blocking = false) override;

 protected:
  explicit LayerModule(std::string name) : torch::nn::Module(std::move(name)) {}
  // To be called once weight, bias and layer() are there.
  void register_state();
  // y for x, with custom autograd: all outputs, or some.
  torch::Tensor run(const torch::Tensor& input) { return run(input, layer().all()); }
  torch::Tensor run(const torch::Tensor& input, const Outputs& some);
  bool in_bf16() const { return settings().precision == Precision::kBf16; }

 private:
  friend class LayerFunction;

  // The products of a subclass, on either path, of some outputs: y, g, dw and w are of those. x and g
  // are contiguous.
  virtual torch::Tensor packed_forward(const torch::Tensor& x, const Outputs& some) = 0;
  virtual torch::Tensor packed_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                             const Outputs& some) = 0;
  virtual torch::Tensor packed_backward_weight(const torch::Tensor& g, const torch::Tensor& x,
                                               const Pass& pass, const Outputs& some) = 0;
  // On the plain path operands are of one dtype, in which the product is computed.
  virtual torch::Tensor plain_forward(const torch::Tensor& x, const torch::Tensor& w) = 0;
  virtual torch::Tensor plain_backward_data(const torch::Tensor& g, const torch::Tensor& x,
                                            const torch::Tensor& w) = 0;
  virtual torch::Tensor plain_backward_weight(const torch::Tensor& g, const torch::Tensor& x) = 0;
  virtual torch::Tensor bias_gradient(const torch::Tensor& g) const = 0;  // dtype of the weights
  virtual torch::Tensor rows_of(const torch::Tensor& x) const = 0;        // see InputWatch
  // Of an input: tokens, of a convolution positions of its output.
  virtual int64_t tokens_of(const torch::Tensor& x) const = 0;
  // 1/π of what a sample of g keeps, 0 elsewhere. g: fp32, on the CPU, contiguous.
  virtual torch::Tensor sample_scales_of(const torch::Tensor& g,
                                         const SampleOptions& options) const = 0;

  torch::Tensor forward_product(const torch::Tensor& x, const Outputs& some);
  torch::Tensor backward_data_product(const torch::Tensor& g, const torch::Tensor& x,
                                      const Outputs& some);
  // Of the whole weight; zero in the rows of other outputs.
  torch::Tensor backward_weight_product(const torch::Tensor& g, const torch::Tensor& x,
                                        const Pass& pass, const Outputs& some);
  torch::Tensor plain_weight_product(const torch::Tensor& g, const torch::Tensor& x,
                                     const Pass& pass, const Outputs& some);
  void require_input(const torch::Tensor& x) const;
  // Rows of a tensor of the shape of the weight.
  torch::Tensor rows_for(const torch::Tensor& weight, const Outputs& some) const;
  torch::Tensor score_gradient(const torch::Tensor& dw) const;

  // Weights and scores as the layer takes them: fp32, on the CPU, contiguous.
  struct HostWeights {
    torch::Tensor values, scores;
    LayerWeights view() const;
  };
  HostWeights host_weights() const;
  // Before a product: masks and operands that match the weights.
  void prepare(bool training);
  void make_plain_operands();
  torch::Tensor plain_operand() const;  // W̃
  void require_same_weights() const;
  void require_shape() const;  // that the weight has the layer's
  void reset_scores();
  torch::Tensor first_scores() const;  // of a recipe that learns some
  bool has_state(torch::serialize::InputArchive& archive) const;
  void settle_state();  // after the layer has changed it
  void store_state() const;
  void restore_state();
  // The dtype of activations and of the operands of the plain path.
  torch::Dtype product_type() const { return in_bf16() ? torch::kBFloat16 : weight.scalar_type(); }

  int64_t prepared_stamp_ = -1;                   // of the layer, when a product was last prepared
  uint64_t fingerprint_ = 0;                      // of the weights then
  torch::Tensor plain_forward_, plain_backward_;  // the operands of the plain path
  bool measure_cosine_ = true;
  bool began_again_ = false;
  std::optional<double> plain_cosine_;
  std::vector<torch::Tensor> buffers_;  // in the order of kStateNames
};

// Every layer of a module once, with its (first) name; the module itself may be one.
std::vector<std::pair<std::string, std::shared_ptr<LayerModule>>> layers_of(
    torch::nn::Module& module);

}  // namespace weft
