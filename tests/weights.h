// Weights to test with, and naive answers to compare with: slow, obvious, and sharing no code with
// weft/mask.
//
// Every weight is a function of (seed, stream), so a failure is repeated by what its trace prints:
//
//   WEFT_TEST_SEED=7 solver_test --gtest_filter=...
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/core/mask.h"
#include "weft/core/parallel.h"
#include "weft/core/pattern.h"
#include "weft/core/rng.h"
#include "weft/core/weight_shape.h"

namespace weft {

using test::test_seed;

enum class Kind {
  kGaussian,
  kIntegers,   // -3 ... 3: full of ties, and sums are exact
  kZeros,      // 0.0 and -0.0
  kEqual,      // 1 and -1
  kWide,       // 1e-30 ... 1e30
  kDominant,   // about one weight in sixteen outweighs all others
  kNearTies,   // 1 and the next two numbers
  kSubnormal,  // 0 ... 5 times the smallest number
};

inline constexpr std::array kAllKinds = {Kind::kGaussian, Kind::kIntegers, Kind::kZeros,
                                         Kind::kEqual,    Kind::kWide,     Kind::kDominant,
                                         Kind::kNearTies, Kind::kSubnormal};

inline std::string_view name_of(Kind kind) {
  static constexpr std::array<std::string_view, kAllKinds.size()> kNames = {
      "gaussian", "integers", "zeros", "equal", "wide", "dominant", "near ties", "subnormal"};
  return kNames[static_cast<size_t>(kind)];
}

// Kinds of which sums of a tile are exact in double, so that scores must be equal to the last bit.
inline bool sums_exactly(Kind kind) {
  return kind == Kind::kIntegers || kind == Kind::kZeros || kind == Kind::kEqual ||
         kind == Kind::kSubnormal;
}

template <typename T>
T draw(Kind kind, const Rng& rng, uint64_t index) {
  const auto words = rng.words(index);  // of which uniform() reads the first two
  const double sign = (words[3] & 1) != 0 ? -1.0 : 1.0;
  const double uniform = rng.uniform(index);
  switch (kind) {
    case Kind::kGaussian: return static_cast<T>(rng.normal(index));
    case Kind::kIntegers: return static_cast<T>(std::floor(uniform * 7) - 3);
    case Kind::kZeros: return static_cast<T>(sign * 0.0);
    case Kind::kEqual: return static_cast<T>(sign);
    case Kind::kWide: return static_cast<T>(sign * std::pow(10.0, 60 * uniform - 30));
    case Kind::kDominant: return static_cast<T>(sign * (words[2] % 16 == 0 ? 1e6 : uniform));
    case Kind::kNearTies:
      return static_cast<T>(sign) *
             (T{1} + std::floor(static_cast<T>(uniform) * 3) * std::numeric_limits<T>::epsilon());
    case Kind::kSubnormal:
      return static_cast<T>(sign) * static_cast<T>(std::floor(uniform * 6)) *
             std::numeric_limits<T>::denorm_min();
  }
  return T{};
}

template <typename T>
struct Weights {
  WeightShape shape;
  std::vector<T> values;  // [outs, ins, taps]

  const T* data() const { return values.data(); }
  T& at(int64_t row, int64_t col) { return values[static_cast<size_t>(row * shape.cols() + col)]; }
  double magnitude(int64_t row, int64_t col) const {
    return std::abs(static_cast<double>(values[static_cast<size_t>(row * shape.cols() + col)]));
  }
};

template <typename T>
Weights<T> draw_weights(Kind kind, const WeightShape& shape, uint64_t stream) {
  Weights<T> weights{shape, std::vector<T>(static_cast<size_t>(shape.outs * shape.cols()))};
  const Rng rng(test_seed(), stream);
  for (size_t i = 0; i < weights.values.size(); ++i) weights.values[i] = draw<T>(kind, rng, i);
  return weights;
}

template <typename T>
Weights<T> transposed(const Weights<T>& weights) {
  Weights<T> result{{weights.shape.ins, weights.shape.outs}, std::vector<T>(weights.values.size())};
  for (int64_t r = 0; r < weights.shape.outs; ++r) {
    for (int64_t c = 0; c < weights.shape.ins; ++c) {
      result.at(c, r) = weights.values[static_cast<size_t>(r * weights.shape.ins + c)];
    }
  }
  return result;
}

inline std::string trace(std::string_view what, const WeightShape& shape, const Pattern& pattern,
                         std::string_view kind = "", uint64_t stream = 0) {
  return fmt::format("{} {} on {} x {} x {} {}, seed {} stream {}", what, pattern.str(), shape.outs,
                     shape.ins, shape.taps, kind, test_seed(), stream);
}

// Sizes around one and two groups.
inline std::vector<int64_t> edges(int64_t group) {
  std::vector<int64_t> sizes = {0, 1, group - 1, group, group + 1, 2 * group + 1};
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// Tests run on one thread unless they are about threads: on small matrices, threads mostly wait for
// each other, and on a busy machine that is ten times slower.
class OneThread : public ::testing::Environment {
  void SetUp() override { set_threads(1); }
};
inline const ::testing::Environment* const kOneThread =
    ::testing::AddGlobalTestEnvironment(new OneThread);

struct ThreadsGuard {
  ~ThreadsGuard() { set_threads(1); }
};

// Sum of |w| that a mask keeps in rows x cols weights from (row, col) on.
template <typename T>
double kept_magnitude(const Weights<T>& weights, const Mask& mask, int64_t row, int64_t col,
                      int64_t rows, int64_t cols) {
  double sum = 0;
  for (int64_t r = row; r < row + rows; ++r) {
    for (int64_t c = col; c < col + cols; ++c) {
      if (mask.at(r, c)) sum += weights.magnitude(r, c);
    }
  }
  return sum;
}
template <typename T>
double kept_magnitude(const Weights<T>& weights, const Mask& mask) {
  return kept_magnitude(weights, mask, 0, 0, weights.shape.outs, weights.shape.cols());
}

// A mask of a tile of at most 16 cells as a number: bit r * cols + c.
using TileCode = uint32_t;

// Every mask of a tile with at most `keep` per row and column.
inline const std::vector<TileCode>& legal_masks(int rows, int cols, int keep) {
  static std::map<std::tuple<int, int, int>, std::vector<TileCode>> known;
  const auto [entry, is_new] = known.try_emplace({rows, cols, keep});
  if (!is_new) return entry->second;
  for (TileCode code = 0; code < TileCode{1} << (rows * cols); ++code) {
    bool legal = true;
    for (int r = 0; r < rows; ++r) {
      int kept = 0;
      for (int c = 0; c < cols; ++c) kept += (code >> (r * cols + c)) & 1;
      legal &= kept <= keep;
    }
    for (int c = 0; c < cols; ++c) {
      int kept = 0;
      for (int r = 0; r < rows; ++r) kept += (code >> (r * cols + c)) & 1;
      legal &= kept <= keep;
    }
    if (legal) entry->second.push_back(code);
  }
  return entry->second;
}

// Those of them that keep the most weights.
inline std::vector<TileCode> full_masks(int rows, int cols, int keep) {
  const std::vector<TileCode>& legal = legal_masks(rows, cols, keep);
  int most = 0;
  for (const TileCode code : legal) most = std::max(most, std::popcount(code));
  std::vector<TileCode> full;
  std::copy_if(legal.begin(), legal.end(), std::back_inserter(full),
               [&](TileCode code) { return std::popcount(code) == most; });
  return full;
}

// The most magnitude that one of `masks` keeps of the rows x cols tile that begins at column `col`.
template <typename T>
double best_of(const std::vector<TileCode>& masks, const Weights<T>& weights, int64_t col, int rows,
               int cols) {
  std::array<double, 16> tile{};
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < cols; ++c) {
      tile[static_cast<size_t>(r * cols + c)] = weights.magnitude(r, col + c);
    }
  }
  double best = 0;
  for (const TileCode code : masks) {
    double sum = 0;
    for (TileCode rest = code; rest != 0; rest &= rest - 1) {
      sum += tile[static_cast<size_t>(std::countr_zero(rest))];
    }
    best = std::max(best, sum);
  }
  return best;
}

}  // namespace weft
