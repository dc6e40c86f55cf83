#include "weft/prune/norm_after.h"

#include <charconv>
#include <cmath>
#include <numeric>

#include "weft/core/error.h"
#include "weft/core/median.h"
#include "weft/prune/tensor_values.h"

namespace weft {
namespace {

std::vector<std::string> names_behind(const std::string& layer) {
  const size_t dot = layer.rfind('.');
  const std::string parent = dot == std::string::npos ? "" : layer.substr(0, dot + 1);
  const std::string name = layer.substr(parent.size());
  std::vector<std::string> names;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error == std::errc() && end == name.data() + name.size() && number >= 0 &&
      number < 1'000'000) {
    return {parent + std::to_string(number + 1)};
  }
  for (const char* norm : {"norm", "bn"}) {
    if (const size_t at = name.find("conv"); at != std::string::npos) {
      names.push_back(parent + name.substr(0, at) + norm + name.substr(at + 4));
    }
    names.push_back(parent + name + "_" + norm);
    if (name == "stem") names.push_back(parent + norm);
  }
  return names;
}

}  // namespace

std::optional<NormAfter> norm_after(const Checkpoint& checkpoint, const std::string& layer,
                                    int64_t outs) {
  const auto values = [&](const std::string& name) -> const ShardedTensor* {
    const ShardedTensor* tensor = find_tensor(checkpoint, name);
    const bool fits = tensor != nullptr && is_weight_dtype(tensor->info.dtype) &&
                      tensor->info.shape == std::vector<int64_t>{outs};
    return fits ? tensor : nullptr;
  };
  for (const std::string& name : names_behind(layer)) {
    const ShardedTensor* mean = values(name + ".running_mean");
    const ShardedTensor* variance = values(name + ".running_var");
    if (mean == nullptr || variance == nullptr) continue;
    NormAfter norm{name, *mean, *variance, std::nullopt};
    if (const ShardedTensor* gamma = values(name + ".weight")) norm.gamma = *gamma;
    return norm;
  }
  return std::nullopt;
}

// In units of the rows' deviations. Over a calibration set a mean is off by a fraction of one, a
// variance by a factor near one. Means of another layer are off by as much as they differ from
// zero, and more; where all are near zero it cannot be decided, and does not matter.
bool normalises(const std::vector<double>& mean, const std::vector<double>& variance,
                const std::vector<double>& weights, const Gram& inputs) {
  const auto rows = static_cast<int64_t>(mean.size());
  WEFT_CHECK(variance.size() == mean.size() &&
                 static_cast<int64_t>(inputs.mean.size()) == inputs.cols &&
                 static_cast<int64_t>(weights.size()) == rows * inputs.cols,
             "{} means and {} variances of {} weights with {} inputs", mean.size(), variance.size(),
             weights.size(), inputs.mean.size());
  const MatrixView<const double> w(weights.data(), rows, inputs.cols);
  const std::vector<double> second = row_energies(w, inputs.view());
  double off = 0.0, size = 0.0;
  std::vector<double> factors;
  for (int64_t r = 0; r < rows; ++r) {
    const auto row = static_cast<size_t>(r);
    const double found = std::inner_product(inputs.mean.begin(), inputs.mean.end(), w.row(r), 0.0);
    const double spread = second[row] - found * found;
    if (!(variance[row] > 1e-12) || !(spread > 1e-12)) continue;  // a row that does nothing
    off += (found - mean[row]) * (found - mean[row]) / variance[row];
    size += mean[row] * mean[row] / variance[row];
    factors.push_back(std::abs(std::log(spread / variance[row])));
  }
  const auto count = static_cast<double>(factors.size());
  return !factors.empty() && off <= 0.25 * size + 0.02 * count && median(factors) < std::log(2.0);
}

}  // namespace weft
