// One layer from dense to N:M: choose the support, then make the best of what stays.
//
//   method       support                        values
//   magnitude    largest |w|                    as they were
//   wanda        largest |w| ‖x‖                as they were
//   absorption   as `support` says: magnitude   means absorbed             (absorb.h)
//   sparsegpt    its own, on the way            compensated column by column  (sparsegpt.h)
//   adaprune     as `support` says: sparsegpt   least squares              (least_squares.h)
//
// adaprune's default is the best of the three by measurement: on a sentence transformer of 22
// million weights at 2:4, the cosine to the dense embedding was 0.844 on magnitude's support and
// 0.890 on sparsegpt's, whose own values reach 0.866.
//
// Where adaprune may move the bias (the layer has one, or batch normalisation follows), that takes
// the mean of what changes: least squares then see centred inputs.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "weft/checkpoint/dtype.h"
#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"
#include "weft/prune/gram.h"
#include "weft/prune/least_squares.h"

namespace weft {

enum class SupportRule : uint8_t { kMagnitude, kWanda, kSparseGpt };
std::string_view support_name(SupportRule rule);
enum class Recovery : uint8_t { kNone, kAbsorb, kCompensate, kLeastSquares };

struct Method {
  std::string_view name;
  SupportRule support;
  Recovery recovery;
  std::string_view source;

  // Whether another support may be named.
  bool chooses_support() const {
    return recovery == Recovery::kAbsorb || recovery == Recovery::kLeastSquares;
  }
  // Whether it must know the inputs of the layer.
  bool needs_inputs() const {
    return support != SupportRule::kMagnitude || recovery == Recovery::kLeastSquares;
  }
};
std::span<const Method> methods();
// With another support, if one is named. Throws Error and names what is known or what goes
// together.
Method method_of(std::string_view name, std::string_view support = "");

struct LayerProblem {
  const double* weights = nullptr;  // [shape.outs, shape.cols()]
  WeightShape shape;
  Pattern pattern{2, 4};
  bool transposable = false;
  Method method;
  const Gram* inputs = nullptr;       // null: not known
  bool free_bias = false;             // only of adaprune; needs the mean of the inputs
  std::span<const double> row_scale;  // [outs] of the batch normalisation after it; empty: none
  double damping = 0.01;              // of sparsegpt
  LeastSquaresOptions least_squares;
  Dtype dtype = Dtype::kF64;  // of the file: the result is rounded to it
};

struct ConvertedLayer {
  std::vector<double> weights;  // [outs, cols], zero outside the support, rounded
  Mask support;
  std::vector<double> bias_change;     // [outs], (W − W') mean; empty: the bias is not free
  std::optional<double> error_before;  // of the support alone: ‖W'X − WX‖² / ‖WX‖²
  std::optional<double> error_after;   // of the result, its bias moved
  std::optional<LeastSquaresReport> solver;
};
// Throws UnusableWeightError at a weight that is not finite, Error if the inputs are
// too few for the method.
ConvertedLayer convert_layer(const LayerProblem& problem);

// Weights of a row that a pattern lets stay.
int64_t kept_per_row(const WeightShape& shape, const Pattern& pattern);

// Samples that a method needs so that its solution is one of the data: as many as a row keeps.
int64_t samples_needed(const Method& method, const WeightShape& shape, const Pattern& pattern);

}  // namespace weft
