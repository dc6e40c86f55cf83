// greedy-prune: the lightest weights first, each pruned while its row or its column still has too
// many left.
//
// Approximate. At most `keep` per row and per column, often fewer: it over-prunes (about 6 of 8
// kept in a 4 x 4 tile at 2:4). The pruned magnitude is at most 2 times the least that any mask
// with at most `keep` per row and column prunes, and that factor is tight. Ties go to the lower
// row, then to the lower column. O(group^2 log group) per tile.
//
// This is the "2-approximation" as the text of Hubara et al. 2021 describes it; the released code
// is greedy-keep.
#include <functional>

#include "weft/mask/algorithms.h"

namespace weft {

void greedy_prune_tile(const Tile& tile, TileMask& kept) {
  const TileOrder order = cells_by_magnitude(tile, std::less<>());
  std::array<int, Pattern::kMaxGroup> row_left, col_left;
  row_left.fill(tile.cols);
  col_left.fill(tile.rows);
  for (int i = 0; i < tile.rows * tile.cols; ++i) {
    const int cell = order[static_cast<size_t>(i)];
    const auto r = static_cast<size_t>(cell / tile.cols), c = static_cast<size_t>(cell % tile.cols);
    if (row_left[r] > tile.keep || col_left[c] > tile.keep) {
      --row_left[r];
      --col_left[c];
    } else {
      kept[r] |= uint64_t{1} << c;
    }
  }
}

}  // namespace weft
