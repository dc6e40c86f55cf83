// NetworkToConvert: the network of a run, as conversions use it: the inputs of its layers, its
// accuracy, its batch normalisation.
//
//   ConvertOptions options;
//   options.open_model = [] { return std::make_unique<NetworkToConvert>(network); };
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "weft/prune/convert_checkpoint.h"
#include "weft/torch/sparsify.h"
#include "weft/train/trainer.h"

namespace weft {

struct NetworkOptions {
  std::filesystem::path run;      // folder
  std::filesystem::path weights;  // the checkpoint that is converted
  std::string data;               // instead of the run's, if not empty
  int64_t samples = 512;          // of the training data, to calibrate on
};

class NetworkToConvert : public ModelToConvert {
 public:
  // Throws Error if the weights do not fit the network of the run. `note` is called with the names
  // of tensors that the network does not have.
  explicit NetworkToConvert(const NetworkOptions& options,
                            const std::function<void(const std::string&)>& note = {});

  const LayerInputs& inputs() const override { return inputs_; }
  std::map<std::string, NetworkObjection> not_converted(bool ends) const override;
  void set(const std::string& tensor, const std::vector<double>& values) override;
  std::set<std::string> norm_tensors() const override;
  std::map<std::string, std::vector<double>> estimate_norms() override;

  // All parameters and statistics, for restore().
  using Weights = std::map<std::string, torch::Tensor>;
  Weights weights() const;
  void restore(const Weights& weights);

  EvalReport evaluate();  // on as many test samples as the run took
  const RunOptions& options() const { return parts_.options; }
  const BatchSource& source() const { return *parts_.source; }

 private:
  // Each run of the network collects the Gram matrices of as many layers as fit into kMostBytes, of
  // one at least.
  class Inputs : public LayerInputs {
   public:
    explicit Inputs(const NetworkToConvert& network) : network_(network) {}
    void check(const std::string& layer, const WeightShape& shape, int64_t samples) const override;
    Gram gram(const std::string& layer, const WeightShape& shape) const override;
    void forget() const { ready_.clear(); }  // the network has changed

   private:
    static constexpr int64_t kMostBytes = int64_t{64} << 20;
    void collect_from(const std::string& layer) const;

    const NetworkToConvert& network_;
    mutable std::vector<std::string> wanted_;    // in the order in which they were checked
    mutable std::map<std::string, Gram> ready_;  // until they are asked for
  };

  int64_t batch() const;
  void weights_changed();

  RunParts parts_;
  std::vector<LayerReport> layers_;
  int64_t sample_count_;
  Inputs inputs_{*this};
};

}  // namespace weft
