#include "weft/mask/verify.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/mask/taps.h"

namespace weft {
namespace {

void check_shape(const Mask& nonzero, const WeightShape& shape) {
  WEFT_CHECK(nonzero.rows() == shape.outs && nonzero.cols() == shape.cols(),
             "a mask of {} x {} does not fit weights of {} x {}", nonzero.rows(), nonzero.cols(),
             shape.outs, shape.cols());
}

// Position of the n-th set bit, counted from 0.
int nth_bit(uint64_t bits, int n) {
  for (; n > 0; --n) bits &= bits - 1;
  return std::countr_zero(bits);
}

// Groups of the rows first_row, first_row + group, ... that share, in one matrix.
GroupCount count_sharing_rows(const Mask& matrix, int64_t first_row, const Pattern& pattern) {
  GroupCount count;
  const int64_t block_end =
      std::min(matrix.rows(), (first_row / pattern.block() + 1) * pattern.block());
  for (int64_t col = 0; col < matrix.cols(); col += pattern.group()) {
    const int width = static_cast<int>(std::min<int64_t>(pattern.group(), matrix.cols() - col));
    uint64_t any = 0;
    for (int64_t r = first_row; r < block_end; r += pattern.group()) {
      any |= matrix.bits(r, col, width);
    }
    ++count.groups;
    if (width < pattern.group()) ++count.short_groups;
    if (std::popcount(any) <= pattern.keep()) continue;
    ++count.violations;
    if (!count.first_violation) {
      const int64_t in = col + nth_bit(any, pattern.keep());
      int64_t out = first_row;
      while (!matrix.at(out, in)) out += pattern.group();
      count.first_violation = WeightPosition{out, in, 0};
    }
  }
  return count;
}

// matrix: [rows, ins] of one tap.
GroupCount count_matrix(const Mask& matrix, const Pattern& pattern) {
  std::vector<GroupCount> counts(static_cast<size_t>(matrix.rows()));
  parallel_for(matrix.rows(), [&](int64_t r) {
    if (r % pattern.block() >= pattern.group()) return;  // counted with the row it shares with
    counts[static_cast<size_t>(r)] = count_sharing_rows(matrix, r, pattern);
  });
  GroupCount all;
  for (const GroupCount& count : counts) all += count;
  return all;
}

template <typename PerMatrix>
void for_each_tap(const Mask& nonzero, const WeightShape& shape, bool transpose,
                  PerMatrix per_matrix) {
  check_shape(nonzero, shape);
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    const Mask matrix = take_tap(nonzero, shape, tap);
    per_matrix(transpose ? matrix.transposed() : matrix, tap);
  }
}

MostPerGroup most_per_group(const Mask& nonzero, const WeightShape& shape, bool transpose) {
  MostPerGroup most{};
  for_each_tap(nonzero, shape, transpose, [&](const Mask& matrix, int64_t) {
    for (size_t i = 0; i < kReportedGroups.size(); ++i) {
      const int group = kReportedGroups[i];
      for (int64_t r = 0; r < matrix.rows(); ++r) {
        for (int64_t col = 0; col < matrix.cols(); col += group) {
          const int width = static_cast<int>(std::min<int64_t>(group, matrix.cols() - col));
          most[i] = std::max(most[i], std::popcount(matrix.bits(r, col, width)));
        }
      }
    }
  });
  return most;
}

}  // namespace

GroupCount& GroupCount::operator+=(const GroupCount& later) {
  groups += later.groups;
  short_groups += later.short_groups;
  violations += later.violations;
  if (!first_violation) first_violation = later.first_violation;
  return *this;
}

GroupCount count_groups_in(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern) {
  GroupCount all;
  for_each_tap(nonzero, shape, false, [&](const Mask& matrix, int64_t tap) {
    GroupCount count = count_matrix(matrix, pattern);
    if (count.first_violation) count.first_violation->tap = tap;
    all += count;
  });
  return all;
}

GroupCount count_groups_out(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern) {
  GroupCount all;
  for_each_tap(nonzero, shape, true, [&](const Mask& matrix, int64_t tap) {
    GroupCount count = count_matrix(matrix, pattern);
    if (count.first_violation) {
      std::swap(count.first_violation->out, count.first_violation->in);
      count.first_violation->tap = tap;
    }
    all += count;
  });
  return all;
}

MostPerGroup most_per_group_in(const Mask& nonzero, const WeightShape& shape) {
  return most_per_group(nonzero, shape, false);
}
MostPerGroup most_per_group_out(const Mask& nonzero, const WeightShape& shape) {
  return most_per_group(nonzero, shape, true);
}

}  // namespace weft
