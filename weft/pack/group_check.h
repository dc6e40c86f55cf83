// Does a mask keep what is promised: at most `keep` per group, the same in rows that share? Asked
// before anything is packed as N:M, and of every packed buffer that comes from outside.
#pragma once

#include <optional>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"

namespace weft {

struct CrowdedGroup {
  int64_t row;
  int64_t first_col;
  int64_t last_col;
};

// The first group, row by row, that keeps more than pattern.keep(). Groups restart after every
// `segment` columns.
std::optional<CrowdedGroup> crowded_group(const Mask& mask, const Pattern& pattern,
                                          int64_t segment);

// Whether every group keeps exactly `keep`, or all it has.
bool every_group_is_full(const Mask& mask, const Pattern& pattern, int64_t segment);

// Throws Error that names the first crowded group.
void require_groups(const Mask& mask, const Pattern& pattern, int64_t segment);

// The same of a mask [rows, units * taps] whose groups are consecutive units at one tap.
void require_tap_groups(const Mask& mask, const Pattern& pattern, int64_t taps);

// Whether the rows that share have equal masks.
bool rows_share(const Mask& mask, const Pattern& pattern);
// Throws Error that names the first two rows that should and do not.
void require_sharing(const Mask& mask, const Pattern& pattern);

}  // namespace weft
