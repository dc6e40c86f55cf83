#include "weft/train/model_memory.h"

#include <fmt/format.h>

#include "weft/core/error.h"
#include "weft/run/memory.h"

namespace weft {
namespace {

double count_of_small(RunOptions options, const ModelShape& shape, int64_t width, int64_t depth) {
  options.width = width;
  options.depth = depth;
  options.heads = 1;
  double count = 0.0;
  for (const torch::Tensor& one : make_model(options, shape)->parameters()) {
    count += static_cast<double>(one.numel());
  }
  return count;
}

}  // namespace

double parameter_count(const RunOptions& options, const ModelShape& shape) {
  constexpr int64_t kWidth = 8;
  const double t = static_cast<double>(options.width - kWidth) / kWidth;
  // Newton's interpolation through the widths 8, 16 and 24.
  const auto at_depth = [&](int64_t depth) {
    const double p0 = count_of_small(options, shape, kWidth, depth);
    const double p1 = count_of_small(options, shape, 2 * kWidth, depth);
    const double p2 = count_of_small(options, shape, 3 * kWidth, depth);
    return p0 + t * (p1 - p0) + t * (t - 1.0) / 2.0 * (p2 - 2.0 * p1 + p0);
  };
  const double one = at_depth(1);
  return one + static_cast<double>(options.depth - 1) * (at_depth(2) - one);
}

void require_memory(const RunOptions& options, const ModelShape& shape, ModelUse use) {
  const bool trains = use == ModelUse::kTraining;
  const double parameters = parameter_count(options, shape);
  const double moments = options.optimizer == "adamw" ? 2.0 : 1.0;
  const double copies = trains ? 2.0 + moments : 1.0;
  const double needed = copies * sizeof(float) * parameters;
  const auto available = static_cast<double>(memory_bytes());
  if (available == 0.0 || needed <= available) return;
  throw Error(fmt::format(
      "{} of width {} and depth {}: {} of {:.3g} parameters need {:.1f} GB, but this machine has "
      "{:.1f} GB: choose a smaller width or depth",
      options.model, options.width, options.depth,
      trains ? fmt::format("weights, gradients and {} moments", options.optimizer) : "weights",
      parameters, 1e-9 * needed, 1e-9 * available));
}

}  // namespace weft
