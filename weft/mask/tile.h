// Tile: the magnitudes of one group x group tile, and what a transposable mask of it may keep.
//
// A tile cut short to rows x cols by the edge of the matrix is solved as what it is, not padded.
// A full mask of it is one of the largest possible size:
//
//   row_keep = min(keep, cols)   col_keep = min(keep, rows)
//   size     = min(rows * row_keep, cols * col_keep)
//
// For a whole tile that is `keep` in every row and column.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"

namespace weft {

struct Tile {
  int rows = 0;
  int cols = 0;
  int keep = 0;
  std::array<double, Pattern::kMaxGroup * Pattern::kMaxGroup> magnitude;  // [rows, cols]

  int row_keep() const { return std::min(keep, cols); }
  int col_keep() const { return std::min(keep, rows); }
  int full_size() const { return std::min(rows * row_keep(), cols * col_keep()); }
  double at(int row, int col) const { return magnitude[static_cast<size_t>(row * cols + col)]; }
};

// What is kept: bit c of word r.
using TileMask = std::array<uint64_t, Pattern::kMaxGroup>;

// The cells of a tile, as row * cols + col, by magnitude; equal ones by position.
using TileOrder = std::array<uint16_t, Pattern::kMaxGroup * Pattern::kMaxGroup>;

template <typename Before>
TileOrder cells_by_magnitude(const Tile& tile, Before before) {
  TileOrder order;
  const auto end = order.begin() + tile.rows * tile.cols;
  std::iota(order.begin(), end, uint16_t{0});
  std::sort(order.begin(), end, [&](uint16_t a, uint16_t b) {
    const double x = tile.magnitude[a], y = tile.magnitude[b];
    return x != y ? before(x, y) : a < b;
  });
  return order;
}

// Calls solve(tile, kept) for the tiles of a band from column `first_col` on.
template <typename T, typename Solve>
void for_each_tile(MatrixView<const T> band, const Pattern& pattern, Mask& mask, int64_t first_row,
                   Solve solve, int64_t first_col = 0) {
  Tile tile;
  tile.rows = static_cast<int>(band.rows);
  tile.keep = pattern.keep();
  TileMask kept;
  for (int64_t col = first_col; col < band.cols; col += pattern.group()) {
    tile.cols = static_cast<int>(std::min<int64_t>(pattern.group(), band.cols - col));
    for (int r = 0; r < tile.rows; ++r) {
      for (int c = 0; c < tile.cols; ++c) {
        tile.magnitude[static_cast<size_t>(r * tile.cols + c)] =
            std::abs(static_cast<double>(band.row(r)[col + c]));
      }
    }
    kept.fill(0);
    solve(tile, kept);
    for (int r = 0; r < tile.rows; ++r) {
      mask.put_bits(first_row + r, col, tile.cols, kept[static_cast<size_t>(r)]);
    }
  }
}

}  // namespace weft
