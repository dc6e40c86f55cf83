// What tests of mask solvers share: the patterns, the mask of some weights, and what a mask must obey.
// The checks have their own tests, in solver_test.cpp.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/weights.h"
#include "weft/mask/solver.h"

namespace weft::test {

inline const std::vector<Pattern> kPatterns = {{1, 1},  {1, 2},   {1, 4},  {2, 4},  {3, 4},
                                               {4, 4},  {2, 8},   {4, 8},  {3, 5},  {5, 7},
                                               {8, 16}, {16, 32}, {1, 64}, {63, 64}};

// Relative. Scores are sums of at most 64 x 64 doubles, and flow rounds to 2^-52 of the largest.
inline constexpr double kRounding = 1e-12;

template <typename T>
Mask mask_of(const Solver& solver, const Weights<T>& weights, const Pattern& pattern) {
  return find_mask(solver, weights.data(), weights.shape, pattern);
}

// Scores of the same problem by two solvers.
inline void expect_same_score(Kind kind, double actual, double expected) {
  if (sums_exactly(kind)) {
    EXPECT_EQ(actual, expected);
  } else {
    EXPECT_NEAR(actual, expected, kRounding * expected);
  }
}

// The group of weight (out, in, tap) begins at a multiple of `group` outs or ins. Says what is
// wrong, or nothing.
inline std::string overfull_group(const Mask& mask, const WeightShape& shape,
                                  const Pattern& pattern, bool transposable) {
  std::map<std::array<int64_t, 4>, int> kept;  // axis, then the coordinates of a group
  for (int64_t out = 0; out < shape.outs; ++out) {
    for (int64_t in = 0; in < shape.ins; ++in) {
      for (int64_t tap = 0; tap < shape.taps; ++tap) {
        if (!mask.at(out, in * shape.taps + tap)) continue;
        ++kept[{0, out, in / pattern.group(), tap}];
        if (transposable) ++kept[{1, out / pattern.group(), in, tap}];
      }
    }
  }
  for (const auto& [group, count] : kept) {
    if (count > pattern.keep()) {
      return fmt::format("{} kept along axis {}, at [{}, {}], tap {}", count, group[0], group[1],
                         group[2], group[3]);
    }
  }
  return "";
}

// A full mask keeps as many as fit; taps = 1.
inline std::string short_of_full(const Mask& mask, const Pattern& pattern, bool transposable) {
  const int64_t height = transposable ? pattern.group() : 1, keep = pattern.keep();
  for (int64_t row = 0; row < mask.rows(); row += height) {
    for (int64_t col = 0; col < mask.cols(); col += pattern.group()) {
      const int64_t rows = std::min(height, mask.rows() - row);
      const int64_t cols = std::min<int64_t>(pattern.group(), mask.cols() - col);
      int64_t kept = 0;
      for (int64_t r = row; r < row + rows; ++r) {
        for (int64_t c = col; c < col + cols; ++c) kept += mask.at(r, c);
      }
      const int64_t by_rows = rows * std::min(keep, cols);
      const int64_t by_cols = transposable ? cols * std::min(keep, rows) : by_rows;
      if (kept != std::min(by_rows, by_cols)) {
        return fmt::format("{} kept in the {} x {} tile at [{}, {}]", kept, rows, cols, row, col);
      }
    }
  }
  return "";
}

// Bits of a row are drawn with column 0 on the left.
inline Mask mask_from(const std::vector<std::string_view>& rows) {
  Mask mask(static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows.front().size()));
  for (size_t r = 0; r < rows.size(); ++r) {
    for (size_t c = 0; c < rows[r].size(); ++c) {
      mask.set(static_cast<int64_t>(r), static_cast<int64_t>(c), rows[r][c] == '1');
    }
  }
  return mask;
}

}  // namespace weft::test
