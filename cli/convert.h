// weft convert, for both programs: what a model of weft's own can do beyond its file needs
// libtorch.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cli/command.h"
#include "weft/prune/calibration.h"

namespace weft::cli {

struct ModelFlags {
  std::string folder;   // of the run
  std::string weights;  // the checkpoint that is converted
  std::string data;     // instead of the run's, if not empty
  int64_t samples = 512;
};

// The network of a run, as a conversion uses it.
class ModelToConvert {
 public:
  virtual ~ModelToConvert() = default;

  virtual const LayerInputs& inputs() const = 0;
  // Weights that no product of weft's multiplies with and, unless `ends`, those of the first and
  // the last layer; with the reason.
  virtual std::map<std::string, std::string> not_converted(bool ends) const = 0;
  virtual void set(const std::string& tensor, const std::vector<double>& values) = 0;
  // Running means and variances of batch normalisation, by name.
  virtual std::set<std::string> norm_tensors() const = 0;
  // Their values for the network as it is now.
  virtual std::map<std::string, std::vector<double>> estimate_norms() = 0;
};
using OpenModel = std::function<std::unique_ptr<ModelToConvert>(const ModelFlags&)>;

CommandEntry convert_command(const OpenModel& open_model);

}  // namespace weft::cli
