#include "weft/mask/verify.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/mask/row_order.h"
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

// The matrix of one tap, transposed if necessary so that groups run along its rows.
struct TapMatrix {
  Mask mask;  // [outs, ins], or [ins, outs] if transposed
  bool transposed;
  int64_t tap;

  WeightPosition position(int64_t row, int64_t col) const {
    return transposed ? WeightPosition{col, row, tap} : WeightPosition{row, col, tap};
  }
};

// The weight that stands for a violated group: the first position too many, in the first row that
// keeps it. any: what the rows that share keep, together, from column `col` on.
WeightPosition weight_too_many(const TapMatrix& matrix, int64_t first_row, int64_t col,
                               uint64_t any, const Pattern& pattern) {
  const int64_t along = col + nth_bit(any, pattern.keep());
  int64_t row = first_row;
  while (!matrix.mask.at(row, along)) row += pattern.group();
  return matrix.position(row, along);
}

// Groups of the rows first_row, first_row + group, ... that share, in one matrix.
GroupCount count_sharing_rows(const TapMatrix& matrix, int64_t first_row, const Pattern& pattern) {
  const Mask& mask = matrix.mask;
  GroupCount all;
  const int64_t block_end =
      std::min(mask.rows(), (first_row / pattern.block() + 1) * pattern.block());
  for (int64_t col = 0; col < mask.cols(); col += pattern.group()) {
    const int width = static_cast<int>(std::min<int64_t>(pattern.group(), mask.cols() - col));
    uint64_t any = 0;
    for (int64_t r = first_row; r < block_end; r += pattern.group()) {
      any |= mask.bits(r, col, width);
    }
    GroupCount group{1, width < pattern.group() ? 1 : 0, 0, {}};
    if (std::popcount(any) > pattern.keep()) {
      group.violations = 1;
      group.first_violation = weight_too_many(matrix, first_row, col, any, pattern);
    }
    all += group;
  }
  return all;
}

GroupCount count_matrix(const TapMatrix& matrix, const Pattern& pattern) {
  std::vector<GroupCount> counts(static_cast<size_t>(matrix.mask.rows()));
  parallel_for(matrix.mask.rows(), [&](int64_t r) {
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
    per_matrix(TapMatrix{transpose ? matrix.transposed() : matrix, transpose, tap});
  }
}

GroupCount count_groups(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern,
                        bool transpose) {
  GroupCount all;
  for_each_tap(nonzero, shape, transpose,
               [&](const TapMatrix& matrix) { all += count_matrix(matrix, pattern); });
  return all;
}

// Positions were counted in places.
GroupCount named_by_output(GroupCount count, std::span<const int64_t> order) {
  if (count.first_violation && !order.empty()) {
    int64_t& out = count.first_violation->out;
    out = order[static_cast<size_t>(out)];
  }
  return count;
}

MostPerGroup most_per_group(const Mask& nonzero, const WeightShape& shape, bool transpose) {
  MostPerGroup most{};
  for_each_tap(nonzero, shape, transpose, [&](const TapMatrix& matrix) {
    const Mask& mask = matrix.mask;
    for (size_t i = 0; i < kReportedGroups.size(); ++i) {
      const int group = kReportedGroups[i];
      for (int64_t r = 0; r < mask.rows(); ++r) {
        for (int64_t col = 0; col < mask.cols(); col += group) {
          const int width = static_cast<int>(std::min<int64_t>(group, mask.cols() - col));
          most[i] = std::max(most[i], std::popcount(mask.bits(r, col, width)));
        }
      }
    }
  });
  return most;
}

}  // namespace

GroupCount& GroupCount::operator+=(const GroupCount& other) {
  groups += other.groups;
  short_groups += other.short_groups;
  violations += other.violations;
  if (other.first_violation) {
    first_violation =
        std::min(first_violation.value_or(*other.first_violation), *other.first_violation);
  }
  return *this;
}

GroupCount count_groups_in(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern) {
  return count_groups(nonzero, shape, pattern, false);
}

GroupCount count_groups_out(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern) {
  return count_groups(nonzero, shape, pattern, true);
}

GroupCount count_groups_in(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern,
                           std::span<const int64_t> order) {
  return named_by_output(count_groups(in_row_order(nonzero, order), shape, pattern, false), order);
}

GroupCount count_groups_out(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern,
                            std::span<const int64_t> order) {
  return named_by_output(count_groups(in_row_order(nonzero, order), shape, pattern, true), order);
}

MostPerGroup most_per_group_in(const Mask& nonzero, const WeightShape& shape) {
  return most_per_group(nonzero, shape, false);
}
MostPerGroup most_per_group_out(const Mask& nonzero, const WeightShape& shape) {
  return most_per_group(nonzero, shape, true);
}

std::vector<Pattern> tightest_patterns(const MostPerGroup& most, int64_t length) {
  std::vector<Pattern> patterns;
  for (size_t i = 0; i < most.size() && kReportedGroups[i] <= length; ++i) {
    const int group = kReportedGroups[i];
    bool implied = most[i] >= group;
    for (size_t j = 0; j < i; ++j) {
      implied |= most[j] * (group / kReportedGroups[j]) <= most[i];
    }
    if (!implied) patterns.emplace_back(std::max(1, most[i]), group);
  }
  return patterns;
}

}  // namespace weft
