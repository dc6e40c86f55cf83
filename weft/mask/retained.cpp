#include "weft/mask/retained.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/mask/sharing.h"
#include "weft/mask/solver.h"
#include "weft/mask/taps.h"
#include "weft/mask/tile.h"

namespace weft {
namespace {

// Best u for one row (or column): the value between its keep-th and next largest |w| - v, or 0.
// Halfway leaves both neighbours room to move in the next sweep.
double best_price(std::array<double, Pattern::kMaxGroup>& left, int length, int keep) {
  if (length <= keep) return 0;
  const auto begin = left.begin(), end = begin + length;
  std::nth_element(begin, begin + keep, end, std::greater<>());
  const double next = left[static_cast<size_t>(keep)];
  const double last_kept = *std::min_element(begin, begin + keep);
  return std::max(0.0, (next + last_kept) / 2);
}

double tile_bound(const Tile& tile) {
  constexpr int kSweeps = 8;
  std::array<double, Pattern::kMaxGroup> u{}, v{}, left;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (int r = 0; r < tile.rows; ++r) {
      for (int c = 0; c < tile.cols; ++c) left[size_t(c)] = tile.at(r, c) - v[size_t(c)];
      u[size_t(r)] = best_price(left, tile.cols, tile.keep);
    }
    for (int c = 0; c < tile.cols; ++c) {
      for (int r = 0; r < tile.rows; ++r) left[size_t(r)] = tile.at(r, c) - u[size_t(r)];
      v[size_t(c)] = best_price(left, tile.rows, tile.keep);
    }
  }
  double prices = 0, excess = 0;
  for (int r = 0; r < tile.rows; ++r) prices += u[size_t(r)];
  for (int c = 0; c < tile.cols; ++c) prices += v[size_t(c)];
  for (int r = 0; r < tile.rows; ++r) {
    for (int c = 0; c < tile.cols; ++c) {
      excess += std::max(0.0, tile.at(r, c) - u[size_t(r)] - v[size_t(c)]);
    }
  }
  return tile.keep * prices + excess;
}

template <typename T>
double matrix_bound(MatrixView<const T> matrix, const Pattern& pattern) {
  double bound = 0;
  Mask unused(matrix.rows, matrix.cols);
  for (int64_t r = 0; r < matrix.rows; r += pattern.group()) {
    const auto band = matrix.rows_from(r, std::min<int64_t>(pattern.group(), matrix.rows - r));
    for_each_tile(band, pattern, unused, r,
                  [&](const Tile& tile, TileMask&) { bound += tile_bound(tile); });
  }
  return bound;
}

}  // namespace

Retained& Retained::operator+=(const Retained& other) {
  kept += other.kept;
  total += other.total;
  return *this;
}

template <typename T>
Retained retained(const T* weights, const WeightShape& shape, const Mask& mask) {
  shape.check();
  WEFT_CHECK(mask.rows() == shape.outs && mask.cols() == shape.cols(),
             "a mask of {} x {} does not fit weights of {} x {}", mask.rows(), mask.cols(),
             shape.outs, shape.cols());
  std::vector<Retained> rows(static_cast<size_t>(shape.outs));
  parallel_for(shape.outs, [&](int64_t r) {
    const T* row = weights + r * shape.cols();
    Retained& sum = rows[static_cast<size_t>(r)];
    for (int64_t c = 0; c < shape.cols(); c += 64) {
      const int count = static_cast<int>(std::min<int64_t>(64, shape.cols() - c));
      const uint64_t kept = mask.bits(r, c, count);
      for (int i = 0; i < count; ++i) {
        const double magnitude = std::abs(static_cast<double>(row[c + i]));
        sum.total += magnitude;
        sum.kept += ((kept >> i) & 1) != 0 ? magnitude : 0.0;
      }
    }
  });
  Retained all;
  for (const Retained& row : rows) all += row;
  return all;
}

template <typename T>
Retained retained_by_largest_half(const T* weights, const WeightShape& shape) {
  shape.check();
  std::vector<T> magnitudes(weights, weights + shape.outs * shape.cols());
  for (T& each : magnitudes) each = std::abs(each);
  const auto half = magnitudes.begin() + static_cast<std::ptrdiff_t>(magnitudes.size() / 2);
  std::nth_element(magnitudes.begin(), half, magnitudes.end(), std::greater<>());
  Retained sum;
  for (auto it = magnitudes.begin(); it != magnitudes.end(); ++it) {
    sum.total += *it;
    sum.kept += it < half ? *it : 0.0;
  }
  return sum;
}

template <typename T>
double transposable_bound(const T* weights, const WeightShape& shape, const Pattern& pattern) {
  shape.check();
  const int64_t block = pattern.block();
  const int64_t blocks = (shape.outs + block - 1) / block;
  std::vector<double> bounds(static_cast<size_t>(blocks));
  parallel_for(blocks, [&](int64_t item) {
    const int64_t first = item * block, rows = std::min(block, shape.outs - first);
    const MatrixView<const T> whole(weights + first * shape.cols(), rows, shape.cols());
    require_usable(whole, first);
    const std::vector<T> taken = take_taps(whole, shape);
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      const MatrixView<const T> matrix(taken.data() + tap * rows * shape.ins, rows, shape.ins);
      const Pattern plain(pattern.keep(), pattern.group());
      bounds[static_cast<size_t>(item)] +=
          pattern.share() == 1 ? matrix_bound(matrix, plain)
                               : matrix_bound(SharedSums(matrix, pattern, true).view(), plain);
    }
  });
  double total = 0;
  for (const double bound : bounds) total += bound;
  return total;
}

template Retained retained(const float*, const WeightShape&, const Mask&);
template Retained retained(const double*, const WeightShape&, const Mask&);
template Retained retained_by_largest_half(const float*, const WeightShape&);
template Retained retained_by_largest_half(const double*, const WeightShape&);
template double transposable_bound(const float*, const WeightShape&, const Pattern&);
template double transposable_bound(const double*, const WeightShape&, const Pattern&);

}  // namespace weft
