#include "weft/pack/group_check.h"

#include <algorithm>
#include <atomic>
#include <bit>

#include "weft/core/parallel.h"

namespace weft {
namespace {

// Calls body(first column, width, kept) for the groups of a row until it returns false. Reads whole
// words where groups tile them: a call per group would take as long as packing.
template <typename Body>
bool for_each_group(const Mask& mask, int64_t row, int group, int64_t segment, Body body) {
  const bool tiles = 64 % group == 0;
  const uint64_t ones = group == 64 ? ~uint64_t{0} : (uint64_t{1} << group) - 1;
  for (int64_t begin = 0; begin < mask.cols(); begin += segment) {
    const int64_t end = begin + segment;
    int64_t col = begin;
    for (; tiles && col + 64 <= end; col += 64) {
      const uint64_t word = mask.bits(row, col, 64);
      for (int at = 0; at < 64; at += group) {
        if (!body(col + at, group, std::popcount((word >> at) & ones))) return false;
      }
    }
    for (; col < end; col += group) {
      const int width = static_cast<int>(std::min<int64_t>(group, end - col));
      if (!body(col, width, std::popcount(mask.bits(row, col, width)))) return false;
    }
  }
  return true;
}

// The lowest row for which `bad` holds; rows() if there is none.
template <typename Bad>
int64_t first_row_where(int64_t rows, Bad bad) {
  constexpr int64_t kRowsPerItem = 64;
  std::atomic<int64_t> first{rows};
  parallel_for((rows + kRowsPerItem - 1) / kRowsPerItem, [&](int64_t item) {
    for (int64_t r = item * kRowsPerItem; r < std::min(rows, (item + 1) * kRowsPerItem); ++r) {
      if (!bad(r)) continue;
      int64_t seen = first.load();
      while (r < seen && !first.compare_exchange_weak(seen, r)) {
      }
      return;
    }
  });
  return first.load();
}

}  // namespace

std::optional<CrowdedGroup> crowded_group(const Mask& mask, const Pattern& pattern,
                                          int64_t segment) {
  std::optional<CrowdedGroup> found;
  const auto crowded = [&](int64_t row, std::optional<CrowdedGroup>& where) {
    return !for_each_group(mask, row, pattern.group(), segment,
                           [&](int64_t col, int width, int kept) {
                             if (kept <= pattern.keep()) return true;
                             where = CrowdedGroup{row, col, col + width - 1};
                             return false;
                           });
  };
  const int64_t row = first_row_where(mask.rows(), [&](int64_t r) {
    std::optional<CrowdedGroup> ignored;
    return crowded(r, ignored);
  });
  if (row < mask.rows()) crowded(row, found);
  return found;
}

bool every_group_is_full(const Mask& mask, const Pattern& pattern, int64_t segment) {
  return first_row_where(mask.rows(), [&](int64_t r) {
           return !for_each_group(mask, r, pattern.group(), segment,
                                  [&](int64_t, int width, int kept) {
                                    return kept >= std::min(width, pattern.keep());
                                  });
         }) == mask.rows();
}

}  // namespace weft
