#include "weft/mask/solver.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <vector>

#include "weft/core/parallel.h"
#include "weft/core/text.h"
#include "weft/mask/algorithms.h"
#include "weft/mask/sharing.h"
#include "weft/mask/taps.h"

namespace weft {
namespace {

// Bands of doubles come checked.
template <typename T>
void check_floats(MatrixView<const T> band, int64_t first_row) {
  if constexpr (std::is_same_v<T, float>) require_usable(band, first_row);
}

template <auto kSolveTile, typename T>
void tiles_band(MatrixView<const T> band, const Pattern& pattern, Mask& mask, int64_t first_row) {
  check_floats(band, first_row);
  for_each_tile(band, pattern, mask, first_row, kSolveTile);
}

// The whole tiles of a band of four rows.
void whole_4x4(MatrixView<const float> band, const Pattern& pattern, Mask& mask,
               int64_t first_row) {
  std::vector<uint16_t> unsure(chunks_4x4(band.cols));
  const bool finite = quick_4x4_band<float>(band, pattern, unsure, mask, first_row);
  const int64_t left = band.cols % 4;
  const bool left_too = !unusable_weight(band.cols_from(band.cols - left, left));
  if (!finite || !left_too) require_usable(band, first_row);
  exact_4x4_band<float>(band, pattern, unsure, mask, first_row);
}
void whole_4x4(MatrixView<const double> band, const Pattern& pattern, Mask& mask,
               int64_t first_row) {
  std::vector<uint16_t> unsure(chunks_4x4(band.cols));
  const bool as_floats = quick_4x4_band<double>(band, pattern, unsure, mask, first_row);
  if (!as_floats) std::fill(unsure.begin(), unsure.end(), uint16_t{0xffff});
  exact_4x4_band<double>(band, pattern, unsure, mask, first_row);
}

template <typename T>
void exact_band(MatrixView<const T> band, const Pattern& pattern, Mask& mask, int64_t first_row) {
  if (pattern.group() != 4 || pattern.keep() == 4 || band.rows < 4) {
    return tiles_band<exact_tile>(band, pattern, mask, first_row);
  }
  whole_4x4(band, pattern, mask, first_row);
  for_each_tile(band, pattern, mask, first_row, exact_tile, band.cols / 4 * 4);
}

constexpr std::array kSolvers = {
    Solver{"magnitude",
           false,
           true,
           "optimal",
           "common practice",
           {0.2, 0.2, 1.3, 1.5, 2.5, 2.5},
           magnitude_band<float>,
           magnitude_band<double>},
    Solver{"exact",
           true,
           true,
           "optimal among full masks",
           "this project; problem of Hubara 2021",
           {54, 0.4, 20.5, 27, 58, 145},
           exact_band<float>,
           exact_band<double>},
    Solver{"flow",
           true,
           true,
           "optimal among full masks",
           "Hubara 2021, minimum-cost flow (LEMON)",
           {150, 217, 322, 396, 517, 850},
           tiles_band<flow_tile, float>,
           tiles_band<flow_tile, double>},
    Solver{"greedy-keep",
           true,
           false,
           "keeps >= 1/2 of the optimum",
           "Hubara 2021, the released code",
           {50, 32, 50, 64, 77, 87},
           tiles_band<greedy_keep_tile, float>,
           tiles_band<greedy_keep_tile, double>},
    Solver{"greedy-prune",
           true,
           false,
           "prunes <= 2 x the optimum",
           "Hubara 2021, the text's 2-approximation",
           {30, 28, 47, 62, 75, 118},
           tiles_band<greedy_prune_tile, float>,
           tiles_band<greedy_prune_tile, double>},
};

template <typename T>
BandSolver<T> band_solver(const Solver& solver) {
  if constexpr (std::is_same_v<T, float>) {
    return solver.solve_f32;
  } else {
    return solver.solve_f64;
  }
}

template <typename T>
void solve_rows(const Solver& solver, MatrixView<const T> matrix, const Pattern& pattern,
                Mask& mask, int64_t first_row) {
  for (int64_t r = 0; r < matrix.rows; r += pattern.group()) {
    const int64_t count = std::min<int64_t>(pattern.group(), matrix.rows - r);
    band_solver<T>(solver)(matrix.rows_from(r, count), pattern, mask, first_row + r);
  }
}

// The mask of one [rows, ins] matrix of at most pattern.block() rows, sharing rows included.
template <typename T>
void solve_block(const Solver& solver, MatrixView<const T> block, const Pattern& pattern,
                 Mask& mask, int64_t first_row) {
  if (pattern.share() == 1) return solve_rows(solver, block, pattern, mask, first_row);
  const SharedSums sums(block, pattern, solver.transposable);
  if (!sums.finite()) require_usable(block, first_row);
  Mask shared(sums.view().rows, sums.view().cols);
  solve_rows(solver, sums.view(), Pattern(pattern.keep(), pattern.group()), shared, 0);
  sums.expand(shared, mask, first_row);
}

// block: [rows, shape.cols()], every tap for itself.
template <typename T>
void solve_taps(const Solver& solver, MatrixView<const T> block, const WeightShape& shape,
                const Pattern& pattern, Mask& mask, int64_t first_row) {
  const std::vector<T> taken = take_taps(block, shape);
  Mask of_taps(shape.taps * block.rows, shape.ins);
  try {
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      const int64_t first = tap * block.rows;
      const MatrixView<const T> one(taken.data() + first * shape.ins, block.rows, shape.ins);
      solve_block(solver, one, pattern, of_taps, first);
    }
  } catch (const UnusableWeightError&) {  // which names it as stored in its tap
    require_usable(block, first_row);
  }
  put_taps(of_taps, shape, mask, first_row);
}

}  // namespace

std::span<const Solver> solvers() { return kSolvers; }

const Solver& solver(std::string_view name) {
  std::string known;
  for (const Solver& candidate : kSolvers) {
    if (candidate.name == name) return candidate;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", candidate.name);
  }
  throw Error(fmt::format("solver '{}': known are {}", printable(name), known));
}

const Solver& default_solver(bool transposable) {
  return solver(transposable ? "exact" : "magnitude");
}

double nanoseconds_per_weight(const Solver& solver, int group) {
  const auto above = std::lower_bound(kTimedGroups.begin(), kTimedGroups.end(), group);
  const auto at =
      std::min<size_t>(static_cast<size_t>(above - kTimedGroups.begin()), kTimedGroups.size() - 1);
  const bool between = at > 0 && kTimedGroups[at] != group;
  return std::max(solver.nanoseconds[at], between ? solver.nanoseconds[at - 1] : 0.0);
}

template <typename T>
std::optional<UnusableWeight> unusable_weight(MatrixView<const T> weights) {
  // Magnitudes compare like their bits; on integers, unlike on floats, the compiler makes this scan
  // a vector loop for any CPU.
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  constexpr Bits kSignless = std::numeric_limits<Bits>::max();
  constexpr T kLargest = sizeof(T) == 4 ? std::numeric_limits<T>::max() : static_cast<T>(0x1p900);
  constexpr Bits kLargestBits = std::bit_cast<Bits>(kLargest);
  const auto too_large = [](T weight) {
    return (std::bit_cast<Bits>(weight) & kSignless) > kLargestBits;
  };
  for (int64_t r = 0; r < weights.rows; ++r) {
    const T* row = weights.row(r);
    Bits found = 0;
    for (int64_t c = 0; c < weights.cols; ++c) found |= Bits{too_large(row[c])};
    for (int64_t c = 0; found != 0 && c < weights.cols; ++c) {
      if (too_large(row[c])) return UnusableWeight{r, c, static_cast<double>(row[c])};
    }
  }
  return std::nullopt;
}

template <typename T>
void require_usable(MatrixView<const T> weights, int64_t first_row) {
  if (const auto bad = unusable_weight(weights)) {
    const UnusableWeight found{first_row + bad->row, bad->col, bad->value};
    throw UnusableWeightError(
        fmt::format("weight [{}, {}] is {}: masks need finite weights{}", found.row, found.col,
                    found.value, sizeof(T) == 4 ? "" : " of at most 2^900"),
        found);
  }
}

template <typename T>
Mask find_mask(const Solver& solver, const T* weights, const WeightShape& shape,
               const Pattern& pattern) {
  shape.check();
  const MatrixView<const T> matrix(weights, shape.outs, shape.cols());
  Mask mask(shape.outs, shape.cols());
  const int64_t block = pattern.block();
  parallel_for((shape.outs + block - 1) / block, [&](int64_t item) {
    const int64_t first = item * block;
    const auto rows = matrix.rows_from(first, std::min(block, shape.outs - first));
    if constexpr (std::is_same_v<T, double>) require_usable(rows, first);
    if (shape.taps == 1) return solve_block(solver, rows, pattern, mask, first);
    solve_taps(solver, rows, shape, pattern, mask, first);
  });
  return mask;
}

template Mask find_mask<float>(const Solver&, const float*, const WeightShape&, const Pattern&);
template Mask find_mask<double>(const Solver&, const double*, const WeightShape&, const Pattern&);
template std::optional<UnusableWeight> unusable_weight(MatrixView<const float>);
template std::optional<UnusableWeight> unusable_weight(MatrixView<const double>);
template void require_usable(MatrixView<const float>, int64_t);
template void require_usable(MatrixView<const double>, int64_t);

}  // namespace weft
