// The algorithms behind the table in solver.cpp: one file each, its contract at the top of it.
#pragma once

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"
#include "weft/mask/tile.h"

namespace weft {

// Over a band of rows (see BandSolver); for float and double.
template <typename T>
void magnitude_band(MatrixView<const T> band, const Pattern& pattern, Mask& mask,
                    int64_t first_row);

// Whole 4 x 4 tiles at 1:4, 2:4 or 3:4, from column 0 on; returns the first column left to do.
template <typename T>
int64_t exact_4x4_band(MatrixView<const T> band, const Pattern& pattern, Mask& mask,
                       int64_t first_row);

// One tile of any shape. `kept` comes in as zeros.
void exact_tile(const Tile& tile, TileMask& kept);
void flow_tile(const Tile& tile, TileMask& kept);
void greedy_keep_tile(const Tile& tile, TileMask& kept);
void greedy_prune_tile(const Tile& tile, TileMask& kept);

}  // namespace weft
