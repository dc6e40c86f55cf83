// The positions of the entries of a panel pack, for packers.
//
// `starts`, the first entry of every cell in every panel, is what must be known first: every cell
// is counted, or every group is said to be full. Then the buffer is made, and the cells are filled
// in any order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "weft/pack/pack.h"

namespace weft {

// Throws Error if there can be no such matrix.
PackHeader panel_header(int64_t rows, int64_t depth, const PanelOptions& options);

// The rows of a cell that exist.
struct Members {
  int64_t first_row;
  int64_t stride;
  int64_t count;

  int64_t last_row() const { return first_row + (count - 1) * stride; }
};

class PanelLayout {
 public:
  explicit PanelLayout(const PackHeader& header);

  // Work items are 128 cells, or whole blocks of sharing rows that have about as many. AMD Zen 3,
  // one thread, least of 15, 64 and 128 cells: sampled packs 2.57 and 2.50 ns per entry (2:4), 2.15
  // and 2.18 (2:4x2), 1.89 and 1.69 (1:16). Matrices of few rows have smaller items, so that there
  // are four of them.
  int64_t cells_per_item() const {
    const int64_t group = header_.group;
    const int64_t cells = std::clamp<int64_t>((cells_ + 63) / 64 * 16, 16, 128);
    return header_.share == 1 ? cells : group * std::max<int64_t>(1, cells / group);
  }
  int64_t items() const { return (cells_ + cells_per_item() - 1) / cells_per_item(); }
  int64_t item_begin(int64_t item) const { return item * cells_per_item(); }
  int64_t item_end(int64_t item) const { return std::min(cells_, item_begin(item + 1)); }

  Members members(int64_t cell) const {
    const int64_t share = header_.share, group = header_.group;
    if (share == 1) return {cell, 1, 1};
    const int64_t first = cell / group * share * group + cell % group;
    const int64_t count = first >= header_.rows ? 0 : (header_.rows - 1 - first) / group + 1;
    return {first, group, std::min(share, count)};
  }

  // Whether panels hold whole groups, so that count_full() knows what is in them.
  bool has_whole_groups() const {
    return header_.tile_depth % header_.group == 0 &&
           (header_.segment % header_.group == 0 || header_.segment == header_.depth);
  }
  // As if every group were full.
  void count_full();

  // Counts become starts, and the buffer is made.
  PackedMatrix allocate(PackedMatrix reuse);

  int64_t panel_begin(int64_t p) const { return p * header_.tile_depth; }
  int64_t panel_end(int64_t p) const { return std::min(header_.depth, panel_begin(p + 1)); }

 protected:
  PackHeader header_;
  int64_t panels_;
  int64_t cells_;
  std::vector<uint32_t> starts_;  // [panels, cells] and the end; counts, before allocate()
};

}  // namespace weft
