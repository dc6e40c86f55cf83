#include "weft/pack/group_check.h"

#include <algorithm>
#include <atomic>

#include "weft/core/bits.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// How many of each `group` bits are set, in fields of `group` bits; group is 4, 8 or 16.
uint64_t field_counts(uint64_t bits, int group) {
  bits -= (bits >> 1) & 0x5555555555555555;
  bits = (bits & 0x3333333333333333) + ((bits >> 2) & 0x3333333333333333);
  if (group == 4) return bits;
  bits = (bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0f;
  if (group == 8) return bits;
  return (bits + (bits >> 8)) & 0x00ff00ff00ff00ff;
}

// Whether each of the fields of 64 bits counts from `least` to `most`: none of the subtractions may
// borrow into the highest bit of its field.
bool fields_within(uint64_t bits, int group, int least, int most) {
  const uint64_t ones = ~uint64_t{0} / ((uint64_t{1} << group) - 1);
  const uint64_t high = ones << (group - 1);
  const uint64_t counts = field_counts(bits, group);
  const uint64_t not_above = (ones * static_cast<uint64_t>(most) | high) - counts;
  const uint64_t not_below = (counts | high) - ones * static_cast<uint64_t>(least);
  return (not_above & not_below & high) == high;
}

// Calls body(first column, width, kept) for the groups of a row until it returns false. Groups that
// keep from `least` to `most` may be left out: words full of them are passed over at once, since a
// call per group would take as long as packing.
template <typename Body>
bool for_each_group(const Mask& mask, int64_t row, int group, int64_t segment, int least, int most,
                    Body body) {
  const bool fields = group == 4 || group == 8 || group == 16;
  const bool tiles = 64 % group == 0;
  const uint64_t ones = group == 64 ? ~uint64_t{0} : (uint64_t{1} << group) - 1;
  for (int64_t begin = 0; begin < mask.cols(); begin += segment) {
    const int64_t end = begin + segment;
    int64_t col = begin;
    for (; tiles && col + 64 <= end; col += 64) {
      const uint64_t word = mask.bits(row, col, 64);
      if (fields && fields_within(word, group, least, most)) continue;
      for (int at = 0; at < 64; at += group) {
        if (!body(col + at, group, popcount64((word >> at) & ones))) return false;
      }
    }
    for (; col < end; col += group) {
      const int width = static_cast<int>(std::min<int64_t>(group, end - col));
      if (!body(col, width, popcount64(mask.bits(row, col, width)))) return false;
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
    return !for_each_group(mask, row, pattern.group(), segment, 0, pattern.keep(),
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
           return !for_each_group(mask, r, pattern.group(), segment, pattern.keep(),
                                  pattern.group(), [&](int64_t, int width, int kept) {
                                    return kept >= std::min(width, pattern.keep());
                                  });
         }) == mask.rows();
}

}  // namespace weft
