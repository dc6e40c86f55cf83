// The algorithms of the table in solver.cpp: one file each, its contract at the top of it.
#pragma once

#include <span>

#include "weft/core/mask.h"
#include "weft/core/matrix_view.h"
#include "weft/core/pattern.h"
#include "weft/mask/tile.h"

namespace weft {

// Over a band of rows (see BandSolver); for float and double.
template <typename T>
void magnitude_band(MatrixView<const T> band, const Pattern& pattern, Mask& mask,
                    int64_t first_row);

// The whole 4 x 4 tiles of a band of four rows at 1:4, 2:4 or 3:4. Element i of `wanted` and
// `unsure`, which have chunks_4x4() of them, speaks of 16 tiles, from column 64 i on: bit t of tile
// t.
inline size_t chunks_4x4(int64_t cols) { return static_cast<size_t>((cols / 4 + 15) / 16); }

// Other tiles than those wanted may be solved on the way.
template <typename T>
void exact_4x4_band(MatrixView<const T> band, const Pattern& pattern,
                    std::span<const uint16_t> wanted, Mask& mask, int64_t first_row);

// Sets the bits of tiles in `unsure`, which comes as zeros, that it leaves to exact_4x4_band.
// Returns false if a weight is not finite, or no finite float; then the mask is not to be used.
template <typename T>
bool quick_4x4_band(MatrixView<const T> band, const Pattern& pattern, std::span<uint16_t> unsure,
                    Mask& mask, int64_t first_row);

// One tile of any shape. `kept` comes in as zeros.
void exact_tile(const Tile& tile, TileMask& kept);
void flow_tile(const Tile& tile, TileMask& kept);
void greedy_keep_tile(const Tile& tile, TileMask& kept);
void greedy_prune_tile(const Tile& tile, TileMask& kept);

}  // namespace weft
