// Grouping: the groups and cells of a layer's weights, for code that walks over them.
//
//   group  `group` consecutive inputs at one tap of one output (the last one may be shorter)
//   cell   outputs that share their pattern: one, or those equal modulo `group` within a block
//
// Weight (row, k-th of a group) is at row * cols + group.first_col + k * group.step.
#pragma once

#include <algorithm>
#include <vector>

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"

namespace weft {

struct Group {
  int64_t first_col;
  int64_t step;  // the number of taps
  int length;
};

struct Cell {
  int64_t first_row;
  int64_t step;
  int64_t rows;
};

class Grouping {
 public:
  Grouping(const WeightShape& shape, const Pattern& pattern) : shape_(shape), pattern_(pattern) {}

  int64_t cells() const {
    if (pattern_.share() == 1) return shape_.outs;
    const int64_t whole = shape_.outs / pattern_.block();
    const int64_t rest = shape_.outs % pattern_.block();
    return whole * pattern_.group() + std::min<int64_t>(rest, pattern_.group());
  }
  Cell cell(int64_t index) const {
    if (pattern_.share() == 1) return {index, 1, 1};
    const int64_t group = pattern_.group();
    const int64_t first = index / group * pattern_.block() + index % group;
    const int64_t rows = (shape_.outs - 1 - first) / group + 1;
    return {first, group, std::min<int64_t>(rows, pattern_.share())};
  }

  int64_t groups_per_tap() const { return (shape_.ins + pattern_.group() - 1) / pattern_.group(); }
  int64_t groups() const { return groups_per_tap() * shape_.taps; }  // of one row
  std::vector<Group> all_groups() const {
    std::vector<Group> all;
    for (int64_t g = 0; g < groups(); ++g) all.push_back(group(g));
    return all;
  }
  Group group(int64_t index) const {
    const int64_t tap = index / groups_per_tap();
    const int64_t first = index % groups_per_tap() * pattern_.group();
    return {first * shape_.taps + tap, shape_.taps,
            static_cast<int>(std::min<int64_t>(pattern_.group(), shape_.ins - first))};
  }

  static uint64_t bits(const Mask& mask, int64_t row, const Group& group) {
    if (group.step == 1) return mask.bits(row, group.first_col, group.length);
    uint64_t found = 0;
    for (int k = 0; k < group.length; ++k) {
      found |= uint64_t{mask.at(row, group.first_col + k * group.step)} << k;
    }
    return found;
  }
  static void put_bits(Mask& mask, int64_t row, const Group& group, uint64_t bits) {
    if (group.step == 1) return mask.put_bits(row, group.first_col, group.length, bits);
    for (int k = 0; k < group.length; ++k) {
      mask.set(row, group.first_col + k * group.step, ((bits >> k) & 1) != 0);
    }
  }

  const WeightShape& shape() const { return shape_; }
  const Pattern& pattern() const { return pattern_; }

 private:
  WeightShape shape_;
  Pattern pattern_;
};

}  // namespace weft
