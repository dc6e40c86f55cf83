// Conversion: a trained checkpoint becomes N:M, one layer at a time.
//
//   Conversion conversion(checkpoint, selection, options, inputs);
//   CheckpointWriter writer(out, checkpoint, conversion.promises());
//   for (const LayerToConvert& layer : conversion.layers()) conversion.convert(layer, &writer);
//   conversion.copy_others(writer);
//
// A layer consists of its weight and its bias. The bias absorbs the change of the output's mean;
// without a bias, the running mean of the batch normalisation after it does. That normalisation is
// found by common names, and used only if its statistics match the output of the layer
// (norm_after.h).
//
// A weight that is stored [ins, outs] is converted as [outs, ins] and written as it was stored.
//
// Memory: one layer, in double (about seven times its weights), and three of its Gram matrices;
// without inputs, `magnitude` streams.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "weft/checkpoint/checkpoint.h"
#include "weft/checkpoint/select.h"
#include "weft/mask/retained.h"
#include "weft/mask/verify.h"
#include "weft/prune/auto_pattern.h"
#include "weft/prune/calibration.h"
#include "weft/prune/convert_layer.h"
#include "weft/prune/norm_after.h"

namespace weft {

// Why a weight is not converted.
enum class NotConverted : uint8_t {
  kNotSelected,  // by the Selection
  kFirstLayer,   // of the network, which stays dense unless sparse_ends
  kLastLayer,    // likewise
  kNoProduct,    // no product of weft's multiplies with it
  kEmpty,        // it has no weights
  kKeptDense     // the pattern that was chosen for it keeps all weights
};
// What the network knows of a weight. detail: more about it, in words.
struct NetworkObjection {
  NotConverted reason = NotConverted::kNoProduct;
  std::string detail;
};

struct ConversionOptions {
  Method method = method_of("magnitude");
  std::optional<Pattern> pattern;  // nothing: by layer, see auto_pattern.h
  int auto_group = 8;
  double confidence = 0.95;
  std::optional<double> density;  // of all converted layers; nothing: by their zeros
  bool transposable = false;
  double damping = 0.01;
  LeastSquaresOptions least_squares;
  std::map<std::string, NetworkObjection> leave;  // tensors that are left alone
  std::set<std::string> written_elsewhere;        // tensors that the caller writes, at the end
};

struct LayerToConvert {
  StoredWeight weight;
  std::string layer;  // "blocks.0.fc1"
  WeightShape shape;
  Pattern pattern{2, 4};
  std::string why;     // the pattern is what it is; empty if the user said so
  double zeros = 0.0;  // share of its weights, if the pattern was chosen by it
  // Absorbs the change of the mean, for methods that compensate it: at most one of the two.
  std::optional<ShardedTensor> bias;
  std::optional<NormAfter> norm;
};

struct LayerLeftOut {
  TensorInfo info;
  NotConverted reason = NotConverted::kNotSelected;
  std::optional<LeftAlone> left_alone;  // of kNotSelected
  std::string detail;                   // of kNoProduct and kKeptDense, in words
  double zeros = 0.0;                   // of kKeptDense: the share of its weights that are zero
};
// Fit to follow "skipped: ".
std::string reason_text(const LayerLeftOut& left_out);

struct LayerOutcome {
  std::string name;            // of the tensor
  std::vector<int64_t> shape;  // as it is stored
  bool transposed = false;
  Pattern pattern{2, 4};
  std::string why;
  std::optional<double> error_before, error_after;  // see ConvertedLayer
  Retained retained;
  double zeros = 0.0;                // share of the weights that came in as zero
  GroupCount groups;                 // of the input: those with more than `keep` non-zeros violate
  double expected_violations = 0.0;  // share of groups, by the binomial rule
  std::optional<LeastSquaresReport> solver;
  bool blind = false;              // its calibration inputs are all zero
  std::vector<std::string> notes;  // what a user should know
  // New values, all at once, in the order of the file: weights, and what took the change of the
  // mean. Empty where the layer was streamed.
  std::vector<std::pair<ShardedTensor, std::vector<double>>> changed;
  double seconds = 0.0;
};

class Conversion {
 public:
  // `inputs` may be null if the method does not need them; it and the checkpoint must outlive this.
  // Throws Error that names a layer that cannot be calibrated as the method needs. `progress` is
  // called with the bytes that were read to choose patterns.
  Conversion(const Checkpoint& checkpoint, const Selection& selection,
             const ConversionOptions& options, const LayerInputs* inputs,
             const std::function<void(uint64_t)>& progress = {});

  const std::vector<LayerToConvert>& layers() const { return layers_; }
  const std::vector<LayerLeftOut>& left_out() const { return left_out_; }
  Sparsity promises() const;  // with those that the checkpoint had

  // writer: null for the report alone.
  LayerOutcome convert(const LayerToConvert& layer, CheckpointWriter* writer) const;
  // All tensors that do not belong to a converted layer.
  void copy_others(CheckpointWriter& writer,
                   const std::function<void(uint64_t)>& progress = {}) const;

 private:
  void select(const Selection& selection);
  void choose_patterns(const std::function<void(uint64_t)>& progress);
  void choose_by_zeros(const std::function<void(uint64_t)>& progress);
  void choose_by_density(const std::function<void(uint64_t)>& progress);
  KeepCosts keep_costs(const LayerToConvert& layer) const;
  bool moves_bias() const {
    return inputs_ != nullptr && options_.method.recovery == Recovery::kLeastSquares;
  }
  LayerOutcome stream(const LayerToConvert& layer, CheckpointWriter* writer) const;
  LayerOutcome solve(const LayerToConvert& layer) const;
  void write(const LayerToConvert& layer, const LayerOutcome& outcome,
             CheckpointWriter& writer) const;
  bool is_ours(const ShardedTensor& tensor) const {
    return !options_.written_elsewhere.contains(tensor.info.name);
  }

  const Checkpoint& checkpoint_;
  ConversionOptions options_;
  const LayerInputs* inputs_;
  std::vector<LayerToConvert> layers_;
  std::vector<LayerLeftOut> left_out_;
  std::set<std::string> written_with_layers_;  // weights, biases and running means
};

}  // namespace weft
