// Mask solvers: weights in, the best N:M mask out.
//
// A transposable mask is N:M along inputs and along outputs: every group x group tile over
// (outs, ins) keeps `keep` per row and per column. Solvers see |w| only.
//
//   find_mask(solver("exact"), weights, shape, pattern)
//
// Cost: see `weft bench solve`. Blocks of pattern.block() rows are solved independently, on all
// threads; the mask does not depend on their number. Floats that no solver takes are found on the
// way, doubles by a scan of the block beforehand.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "weft/core/error.h"
#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"

namespace weft {

// Fills rows [first_row, first_row + band.rows) of `mask` for a band of at most `group` rows.
// Throws UnusableWeightError at the first float that is not finite; doubles, which may be sums,
// come checked.
template <typename T>
using BandSolver = void (*)(MatrixView<const T> band, const Pattern& pattern, Mask& mask,
                            int64_t first_row);

// The groups whose times a Solver says.
inline constexpr std::array kTimedGroups = {2, 4, 8, 16, 32, 64};

struct Solver {
  std::string_view name;
  bool transposable;
  bool exact;
  std::string_view guarantee;
  std::string_view source;
  // Per weight, on one core, at keep = group / 2 (`weft bench solve`): what schedules go by. From
  // groups of 4 to 32 as docs/masks.md has them; at 2 and 64 in proportion, of another run.
  std::array<double, kTimedGroups.size()> nanoseconds;
  BandSolver<float> solve_f32;
  BandSolver<double> solve_f64;
};

std::span<const Solver> solvers();
const Solver& solver(std::string_view name);  // throws Error and names the known ones
const Solver& default_solver(bool transposable);
// Of any group: the larger of the two times beside it.
double nanoseconds_per_weight(const Solver& solver, int group);

// weights: [shape.outs, shape.cols()], as stored in a tensor (see WeightShape).
// Throws UnusableWeightError at the first weight that no solver takes.
template <typename T>
Mask find_mask(const Solver& solver, const T* weights, const WeightShape& shape,
               const Pattern& pattern);

// A weight that no solver takes: NaN, infinite, or above 2^900, where sums of |w| would overflow.
struct UnusableWeight {
  int64_t row;
  int64_t col;  // in [0, shape.cols())
  double value;
};

// Names the row and column in the message; a caller that knows the tensor can name its index
// instead.
class UnusableWeightError : public Error {
 public:
  UnusableWeightError(const std::string& message, const UnusableWeight& weight)
      : Error(message), weight_(weight) {}

  // The row is counted in the whole matrix that was passed in.
  const UnusableWeight& weight() const { return weight_; }

 private:
  UnusableWeight weight_;
};

// The first one, row by row.
template <typename T>
std::optional<UnusableWeight> unusable_weight(MatrixView<const T> weights);
// Throws UnusableWeightError at it, with `first_row` added to its row.
template <typename T>
void require_usable(MatrixView<const T> weights, int64_t first_row);

}  // namespace weft
