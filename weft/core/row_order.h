// A row order: a permutation of the outputs of a matrix; place p holds output order[p].
// Patterns that are shared are shared by places (mask/row_order.h). Empty: not permuted.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "weft/core/error.h"

namespace weft {

inline std::vector<int64_t> identity_order(int64_t outs) {
  std::vector<int64_t> order(static_cast<size_t>(outs));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Whether it holds each of 0 ... outs - 1 once.
inline bool is_row_order(std::span<const int64_t> order, int64_t outs) {
  if (static_cast<int64_t>(order.size()) != outs) return false;
  std::vector<bool> seen(order.size());
  for (const int64_t row : order) {
    if (row < 0 || row >= outs || seen[static_cast<size_t>(row)]) return false;
    seen[static_cast<size_t>(row)] = true;
  }
  return true;
}

// Throws Error that begins with `context` unless it is one; an empty one passes.
inline void require_row_order(std::span<const int64_t> order, int64_t outs,
                              std::string_view context) {
  WEFT_CHECK(order.empty() || is_row_order(order, outs),
             "{}: {} numbers are not a permutation of 0..{}", context, order.size(), outs - 1);
}

}  // namespace weft
