// Does a matrix obey a pattern? Counted on the mask of its non-zero weights.
//
// Along inputs, a group is `group` consecutive ins at one tap of one output; with sharing, of all
// the rows that share, taken together: what any of them keeps counts once. Along outputs the same
// holds of the transposed matrix. A group is violated when it has more than `keep` non-zeros.
#pragma once

#include <array>
#include <compare>
#include <optional>
#include <span>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"

namespace weft {

// Ordered as in the tensor: by out, then in, then tap.
struct WeightPosition {
  int64_t out = 0;
  int64_t in = 0;
  int64_t tap = 0;

  auto operator<=>(const WeightPosition&) const = default;
};

struct GroupCount {
  int64_t groups = 0;
  int64_t short_groups = 0;  // cut by the edge
  int64_t violations = 0;
  // A violated group is named by its first position too many, in the first row that keeps it. Of
  // all groups at all taps, the one that comes first in tensor order.
  std::optional<WeightPosition> first_violation;

  // In any order; positions must be counted from the same origin.
  GroupCount& operator+=(const GroupCount& other);
};

// nonzero: [shape.outs, shape.cols()]; a band of a larger matrix must begin at a multiple of
// pattern.block() rows.
GroupCount count_groups_in(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern);
GroupCount count_groups_out(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern);
// Of a whole matrix whose places share (row_order.h), and follow each other along outputs. A
// violation is named by its output.
GroupCount count_groups_in(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern,
                           std::span<const int64_t> order);
GroupCount count_groups_out(const Mask& nonzero, const WeightShape& shape, const Pattern& pattern,
                            std::span<const int64_t> order);

// The group sizes for which inspect_checkpoint (`weft info`) reports the tightest pattern.
inline constexpr std::array<int, 6> kReportedGroups = {2, 4, 8, 16, 32, 64};

// The most non-zeros in any group of kReportedGroups[i], along inputs or along outputs. A band must
// begin at a multiple of 64 rows.
using MostPerGroup = std::array<int, kReportedGroups.size()>;
MostPerGroup most_per_group_in(const Mask& nonzero, const WeightShape& shape);
MostPerGroup most_per_group_out(const Mask& nonzero, const WeightShape& shape);

// The tightest pattern of each reported group size up to `length`, the size of the matrix along the
// axis, without those that a smaller group implies: 2:4 implies 4:8.
std::vector<Pattern> tightest_patterns(const MostPerGroup& most, int64_t length);

}  // namespace weft
