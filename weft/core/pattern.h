// Pattern: at most `keep` of every `group` consecutive weights are non-zero.
//
// Printed `2:4`, or `2:4x2` when `share` rows have the same pattern. Sharing, once and for all:
// in a block of share * group rows, the rows that are equal modulo `group` share.
//
//   2:4x2, rows of one block:   0 1 2 3 | 4 5 6 7      0 and 4 share, 1 and 5, 2 and 6, 3 and 7
//
// A transposable shared mask is one group x group mask repeated over share x share tiles, so that
// it is keep:group along both axes.
#pragma once

#include <string>
#include <string_view>

namespace weft {

class Pattern {
 public:
  static constexpr int kMaxGroup = 64;
  static constexpr int kMaxShare = 32;

  // Throws Error unless 1 <= keep <= group <= 64 and share is 1, 2, 4, 8, 16 or 32.
  Pattern(int keep, int group, int share = 1);

  // Accepts what str() prints, "2:4", "2:4x2", and "2:4x1" for "2:4".
  static Pattern parse(std::string_view text);
  std::string str() const;

  int keep() const { return keep_; }
  int group() const { return group_; }
  int share() const { return share_; }

  // Rows that a mask solver must see together: blocks of this many rows are independent.
  int block() const { return group_ * share_; }

  friend bool operator==(const Pattern&, const Pattern&) = default;

 private:
  int keep_;
  int group_;
  int share_;
};

}  // namespace weft
