#include "weft/prune/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/text.h"
#include "weft/prune/cholesky.h"
#include "weft/prune/elements.h"
#include "weft/prune/tensor_values.h"

namespace weft {
namespace {

// Why a width is not that of the layer, with the likely reason.
std::string width_problem(int64_t width, const WeightShape& shape) {
  const std::string hint = shape.taps > 1 && width == shape.ins
                               ? "; for a convolution, save its unfolded input (torch's unfold)"
                               : "";
  return fmt::format("{} wide, but the layer has {} columns{}", width, shape.cols(), hint);
}

constexpr double kSlack = 1e-3;  // of a single entry

// What rounding to float, wherever it happened, can take from the smallest eigenvalue of a gram
// with a diagonal of ones. Where it did, so much is added to the diagonal: a form that is a little
// indefinite would have solutions without bound, and errors below zero.
double rounding_of(int64_t cols) { return 0x1p-22 * std::sqrt(static_cast<double>(cols)); }

// Whether samples can have this second moment: no combination of inputs has a negative square, but
// for `slack` of what they have on their own.
bool is_semidefinite(const Gram& gram, const std::vector<double>& sizes, double slack) {
  const int64_t n = gram.cols;
  std::vector<double> scaled(gram.second.size(), 0.0);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c < n; ++c) {
      const double size = std::sqrt(sizes[static_cast<size_t>(r)] * sizes[static_cast<size_t>(c)]);
      if (size > 0) scaled[static_cast<size_t>(r * n + c)] = gram.view().at(r, c) / size;
    }
    scaled[static_cast<size_t>(r * n + r)] += slack;
  }
  return !cholesky({scaled.data(), n, n});
}

}  // namespace

std::string calibration_name(const std::string& tensor) {
  constexpr std::string_view kEnding = ".weight";
  return tensor.ends_with(kEnding) ? tensor.substr(0, tensor.size() - kEnding.size()) : tensor;
}

CalibrationFile::CalibrationFile(const std::filesystem::path& path)
    : checkpoint_(Checkpoint::open(path)) {}

std::string CalibrationFile::place(const ShardedTensor& tensor) const {
  return place_of(checkpoint_, tensor);
}

void CalibrationFile::check(const std::string& layer, const WeightShape& shape,
                            int64_t samples) const {
  const ShardedTensor* input = find_tensor(checkpoint_, layer + ".input");
  const ShardedTensor* gram = find_tensor(checkpoint_, layer + ".gram");
  const std::string file = printable(checkpoint_.paths().front().string(), 4096);
  WEFT_CHECK(input != nullptr || gram != nullptr,
             "{}: has neither {}.input nor {}.gram; calibrate the layer, or exclude it", file,
             printable(layer), printable(layer));
  WEFT_CHECK(input == nullptr || gram == nullptr,
             "{}: has both {}.input and {}.gram; accepted is one of them", file, printable(layer),
             printable(layer));
  const ShardedTensor& given = input != nullptr ? *input : *gram;
  const std::vector<int64_t>& dims = given.info.shape;
  WEFT_CHECK(is_weight_dtype(given.info.dtype), "{}: {} is not F32, F16, BF16 or F64", place(given),
             dtype_name(given.info.dtype));
  WEFT_CHECK(gram == nullptr || dtype_bits(gram->info.dtype) >= 32,
             "{}: {} is too imprecise for a Gram matrix: accepted are F32 and, better, F64",
             place(given), dtype_name(gram->info.dtype));
  WEFT_CHECK(dims.size() == 2, "{}: shape {}: accepted are two dimensions", place(given),
             shape_text(dims));
  WEFT_CHECK(dims[1] == shape.cols(), "{}: {}", place(given), width_problem(dims[1], shape));
  WEFT_CHECK(gram == nullptr || dims[0] == dims[1], "{}: {} is not square", place(given),
             shape_text(dims));
  const int64_t known = input != nullptr ? dims[0] : saved_samples(layer);
  WEFT_CHECK((input == nullptr && known == 0) || known >= samples,
             "{}: {} samples: at least {} are needed, one per kept weight of a row", place(given),
             known, samples);
  const ShardedTensor* mean = find_tensor(checkpoint_, layer + ".mean");
  WEFT_CHECK(mean == nullptr || (is_weight_dtype(mean->info.dtype) &&
                                 mean->info.shape == std::vector<int64_t>{shape.cols()}),
             "{}: {} {} is not the mean of {} inputs", place(*mean), dtype_name(mean->info.dtype),
             shape_text(mean->info.shape), shape.cols());
}

int64_t CalibrationFile::saved_samples(const std::string& layer) const {
  const ShardedTensor* tensor = find_tensor(checkpoint_, layer + ".samples");
  if (tensor == nullptr) return 0;
  const bool wide = tensor->info.dtype == Dtype::kI64;
  WEFT_CHECK((wide || tensor->info.dtype == Dtype::kI32) && tensor->info.elements() == 1,
             "{}: {} {} is not one integer (I32 or I64)", place(*tensor),
             dtype_name(tensor->info.dtype), shape_text(tensor->info.shape));
  int64_t count = 0;
  int32_t narrow = 0;
  void* to = wide ? static_cast<void*>(&count) : static_cast<void*>(&narrow);
  checkpoint_.read(*tensor, 0, {static_cast<std::byte*>(to), tensor->info.bytes()});
  if (!wide) count = narrow;
  WEFT_CHECK(count >= 1, "{}: {} samples", place(*tensor), count);
  return count;
}

Gram CalibrationFile::gram_of_inputs(const ShardedTensor& tensor) const {
  const int64_t cols = tensor.info.shape[1];
  GramBuilder builder(cols);
  for_each_band(checkpoint_, tensor, 1, [&](const Band& band) {
    with_weights(tensor.info.dtype, band.bytes, [&](auto values) {
      for (size_t i = 0; i < values.size(); ++i) {
        WEFT_CHECK(std::isfinite(values[i]), "{}: sample {}, input {} is {}", place(tensor),
                   band.first_row + static_cast<int64_t>(i) / cols, static_cast<int64_t>(i) % cols,
                   values[i]);
      }
      builder.add(MatrixView(values.data(), band.rows, cols));
    });
  });
  return builder.finish();
}

Gram CalibrationFile::saved_gram(const std::string& layer, const ShardedTensor& tensor) const {
  Gram gram;
  const int64_t n = gram.cols = tensor.info.shape[1];
  gram.second = read_values(checkpoint_, tensor);
  gram.samples = saved_samples(layer);
  // What every mean of x xᵀ is: finite, symmetric, semidefinite, and so with no entry larger than
  // its diagonal allows.
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t c = 0; c <= r; ++c) {
      double& below = gram.second[static_cast<size_t>(r * n + c)];
      double& above = gram.second[static_cast<size_t>(c * n + r)];
      WEFT_CHECK(std::isfinite(below) && std::isfinite(above), "{}: entry ({}, {}) is {}",
                 place(tensor), r, c, std::isfinite(below) ? above : below);
      WEFT_CHECK(r != c || below >= 0,
                 "{}: entry ({}, {}) is {}, but a mean square cannot be negative", place(tensor), r,
                 c, below);
      const double most = std::sqrt(gram.diagonal(c)) * std::sqrt(std::max(0.0, gram.diagonal(r)));
      WEFT_CHECK(std::abs(below - above) <= kSlack * most &&
                     std::abs(below) <= (1 + kSlack) * most &&
                     std::abs(above) <= (1 + kSlack) * most,
                 "{}: not the mean of x xᵀ: entries ({}, {}) and ({}, {}) are {} and {}, but the "
                 "diagonal has {} and {}",
                 place(tensor), r, c, c, r, below, above, gram.diagonal(r), gram.diagonal(c));
      below = above = 0.5 * (below + above);
    }
  }
  std::vector<double> sizes;
  for (int64_t c = 0; c < n; ++c) sizes.push_back(gram.diagonal(c));
  const double rounding = rounding_of(n);
  WEFT_CHECK(is_semidefinite(gram, sizes, rounding),
             "{}: not the mean of x xᵀ: it is not positive semidefinite", place(tensor));
  const ShardedTensor* mean = find_tensor(checkpoint_, layer + ".mean");
  if (mean != nullptr) add_mean(tensor, *mean, gram);
  const bool definite = is_semidefinite(mean != nullptr ? gram.centered() : gram, sizes, 1e-12);
  for (int64_t c = 0; c < n && !definite; ++c) {
    gram.second[static_cast<size_t>(c * n + c)] += rounding * sizes[static_cast<size_t>(c)];
  }
  return gram;
}

void CalibrationFile::add_mean(const ShardedTensor& tensor, const ShardedTensor& mean,
                               Gram& gram) const {
  gram.mean = read_values(checkpoint_, mean);
  const double rounding = rounding_of(gram.cols);
  std::vector<double> sizes;
  double square = 0.0, variance = 0.0;
  for (int64_t c = 0; c < gram.cols; ++c) {
    const double m = gram.mean[static_cast<size_t>(c)];
    WEFT_CHECK(m * m <= (1 + kSlack) * gram.diagonal(c),
               "{}: entry {} is {}, but its mean square is {}: with a mean, the Gram matrix must "
               "be the mean over samples, not the sum",
               place(mean), c, m, gram.diagonal(c));
    sizes.push_back(gram.diagonal(c));
    square += gram.diagonal(c), variance += gram.diagonal(c) - m * m;
  }
  WEFT_CHECK(is_semidefinite(gram.centered(), sizes, rounding),
             "{}: not the mean of the inputs of {}: the covariance is not positive semidefinite",
             place(mean), printable(tensor.info.name));
  const bool held = tensor.info.dtype == Dtype::kF64 && mean.info.dtype == Dtype::kF64;
  WEFT_CHECK(
      held || rounding * square <= 1e-3 * variance,
      "{}: too far from zero for {} to hold the variance of the inputs: save gram and mean in F64",
      place(mean), dtype_name(tensor.info.dtype));
}

Gram CalibrationFile::gram(const std::string& layer, const WeightShape& shape) const {
  check(layer, shape, 1);
  if (const ShardedTensor* input = find_tensor(checkpoint_, layer + ".input"))
    return gram_of_inputs(*input);
  return saved_gram(layer, *find_tensor(checkpoint_, layer + ".gram"));
}

}  // namespace weft
