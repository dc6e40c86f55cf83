// The network of a run, as conversions use it: its inputs, its accuracy, its batch normalisation.
#pragma once

#include "cli/convert.h"
#include "weft/train/layer_inputs.h"
#include "weft/train/trainer.h"

namespace weft::cli {

class Network : public ModelToConvert {
 public:
  // Throws Error if the weights do not fit the network of the run.
  explicit Network(const ModelFlags& flags);

  const LayerInputs& inputs() const override { return inputs_; }
  std::map<std::string, std::string> not_converted(bool ends) const override;
  void set(const std::string& tensor, const std::vector<double>& values) override;
  std::set<std::string> norm_tensors() const override;
  std::map<std::string, std::vector<double>> estimate_norms() override;

  // All parameters and statistics, to go back to.
  using Weights = std::map<std::string, torch::Tensor>;
  Weights weights() const;
  void restore(const Weights& weights);

  EvalReport evaluate();  // on as many test samples as the run took
  const RunOptions& options() const { return parts_.options; }
  const BatchSource& source() const { return *parts_.source; }

 private:
  // Runs the network for as many layers at a time as have Gram matrices of kMostBytes together, or
  // for one.
  class Inputs : public LayerInputs {
   public:
    explicit Inputs(const Network& network) : network_(network) {}
    void check(const std::string& layer, const WeightShape& shape, int64_t samples) const override;
    Gram gram(const std::string& layer, const WeightShape& shape) const override;
    void forget() const { ready_.clear(); }  // the network has changed

   private:
    static constexpr int64_t kMostBytes = int64_t{64} << 20;
    void collect_from(const std::string& layer) const;

    const Network& network_;
    mutable std::vector<std::string> wanted_;    // in the order in which they were checked
    mutable std::map<std::string, Gram> ready_;  // until they are asked for
  };

  NetworkSamples samples() const;
  void weights_changed();

  RunParts parts_;
  std::vector<LayerReport> layers_;
  int64_t sample_count_;
  Inputs inputs_{*this};
};

}  // namespace weft::cli
