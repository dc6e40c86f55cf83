// convert_checkpoint: makes a trained checkpoint N:M, with as little change of the layers' outputs
// as the method can achieve.
//
//   ConvertOptions options;
//   options.in = "model.safetensors";
//   options.out = {"sparse.safetensors"};
//   options.conversion.method = method_of("adaprune");
//   options.conversion.pattern = Pattern(2, 4);
//   options.calibration = "inputs.safetensors";
//   const ConvertReport report = convert_checkpoint(options);
//
// Conversion (conversion.h) does the work layer by layer; this is all of them, the tensors that are
// copied, and, with a network, its batch normalisation, estimated again with the new weights.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "weft/prune/conversion.h"
#include "weft/prune/job.h"

namespace weft {

// The network that the checkpoint belongs to, as a conversion uses it.
class ModelToConvert {
 public:
  virtual ~ModelToConvert() = default;

  virtual const LayerInputs& inputs() const = 0;
  // Weights that no product of weft's multiplies with and, unless `ends`, those of the first and
  // the last layer.
  virtual std::map<std::string, NetworkObjection> not_converted(bool ends) const = 0;
  virtual void set(const std::string& tensor, const std::vector<double>& values) = 0;
  // Running means and variances of batch normalisation, by name.
  virtual std::set<std::string> norm_tensors() const = 0;
  // Their values for the network as it is now.
  virtual std::map<std::string, std::vector<double>> estimate_norms() = 0;
};

struct ConvertOptions {
  std::filesystem::path in;  // .safetensors, .index.json, or a folder; not packed
  Destination out;
  // `leave` and `written_elsewhere` are set from the network, if there is one.
  ConversionOptions conversion;
  // The inputs of the layers, from a file (calibration.h) or from the network, at most one of them.
  std::optional<std::filesystem::path> calibration;
  std::function<std::unique_ptr<ModelToConvert>()>
      open_model;            // called after the files are checked
  bool sparse_ends = false;  // of the network: convert the first and the last layer too
  bool keep_norms = false;   // of the network: do not estimate batch normalisation again
  NameExpressions names;     // heads count as weights if there is a network: it knows its ends
  bool dry_run = false;      // convert and report, but write nothing
};

struct ConvertReport {
  std::vector<LayerOutcome> layers;  // at least one; without `changed`
  std::vector<LayerLeftOut> left_out;
  size_t all_tensors = 0;      // of the checkpoint
  size_t norms_estimated = 0;  // tensors of batch normalisation
  std::filesystem::path out;   // the file itself if the folder was named and has one
  Companions companions;       // that were copied
};

// Throws OverwriteError if the output would replace one of the inputs, OptionError if in_place does
// not fit, and Error that names the file and the problem otherwise.
ConvertReport convert_checkpoint(const ConvertOptions& options, const Listener& listener = {});

}  // namespace weft
