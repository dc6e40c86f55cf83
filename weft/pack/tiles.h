// The tile layout (packed_matrix.h), made from panels: what was N:M, shared by 16 or 32 rows, for a
// unit that multiplies tiles of 16 x 32 numbers.
//
//   tiles_of(pack_panels(w, mask, {pattern, tile_panel(pattern), Precision::kBf16}))
//
// However panels were packed (by mask, by magnitude, transposed, sampled, ragged); values of fp32
// are rounded to nearest even. Cost: one pass over the pack.
#pragma once

#include "weft/pack/packed_matrix.h"

namespace weft {

// Numbers of a tile, for the sparse operand: sharing rows, and entries of depth.
constexpr int kTileRows = 16;
constexpr int kTileEntries = 32;
// Columns of the dense operand that a panel has: four tiles side by side.
constexpr int kTileColumns = 64;

// Whether rows that share this pattern fill tiles.
inline bool fills_tiles(const Pattern& pattern) { return pattern.share() >= kTileRows; }

// The panels to pack for tiles with.
PackTile tile_panel(const Pattern& pattern);

// panels: shared by 16 or 32 rows, at most 1024 deep.
PackedMatrix tiles_of(const PackedMatrix& panels, PackedMatrix reuse = {});

}  // namespace weft
