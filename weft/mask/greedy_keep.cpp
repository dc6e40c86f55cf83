// greedy-keep: the heaviest weights first, each kept if its row and its column have room.
//
// Approximate. At most `keep` per row and per column; the mask may be short of full and cannot
// always be completed. Its kept magnitude is at least 1/2 of the best mask with at most `keep` per
// row and column (greedy on a 2-extendible system; [[1, 1-e], [1-e, 0]] at 1:2 comes as close as
// one likes). Since that is a larger family than the full masks of `exact`, a greedy mask can in
// rare tiles keep more than the full optimum: a 3 x 3 block of heavy weights in a 4 x 4 tile.
// Ties go to the lower row, then to the lower column. O(group^2 log group) per tile.
//
// This is what the released code of Hubara et al. 2021 does under the name "2-approximation"; the
// paper describes greedy-prune.
#include <functional>

#include "weft/mask/algorithms.h"

namespace weft {

void greedy_keep_tile(const Tile& tile, TileMask& kept) {
  const TileOrder order = cells_by_magnitude(tile, std::greater<>());
  std::array<int, Pattern::kMaxGroup> row_count{}, col_count{};
  for (int i = 0; i < tile.rows * tile.cols; ++i) {
    const int cell = order[static_cast<size_t>(i)];
    const auto r = static_cast<size_t>(cell / tile.cols), c = static_cast<size_t>(cell % tile.cols);
    if (row_count[r] == tile.keep || col_count[c] == tile.keep) continue;
    ++row_count[r];
    ++col_count[c];
    kept[r] |= uint64_t{1} << c;
  }
}

}  // namespace weft
