// What a tile unit does: the innermost loops of the products in bf16, one set per unit.
//
//   sparse   C [share, 64] (+)= A [share, entries] * the rows of a panel that the entries name
//   dense    C [32, 32]      = A [32, depth] * B [depth, 32]
//
// A tile of the left operand is [16 rows, 32 deep]; of the right one it is [16 pairs, 16 columns,
// 2]: two numbers that follow each other in depth are adjacent. Sums are fp32. Units may treat
// subnormal numbers as zero, as AMX does; apart from this and the order of sums they agree.
//
// The columns of a panel are in the order in which interleaving two of its rows makes two tiles
// (panel_place): within 32 columns, four of the first tile, four of the second, and so on.
//
// None of these allocates, throws or checks. `begin` and `end` stand around calls on one thread:
// AMX has a state to be set up.
#pragma once

#include <cstdint>

#include "weft/core/bf16.h"
#include "weft/kernel/tile/tile_unit.h"

namespace weft {

// The position of column c of 64 in a row of a panel.
constexpr int panel_place(int c) { return c / 32 * 32 + c % 16 / 4 * 8 + c % 32 / 16 * 4 + c % 4; }

// Two steps: what is gathered while the other one is multiplied.
struct TileScratch {
  alignas(64) Bf16 pairs[2][4][16][16][2];  // [step % 2, tile, pair, column, of the pair]
};

struct SparseTileJob {
  const Bf16* panel = nullptr;        // [panel depth + 1, 64]; the last row is zero
  const uint16_t* offsets = nullptr;  // [32 * steps]: rows of the panel
  const Bf16* values = nullptr;       // [steps, share / 16, 16, 32]
  int64_t steps = 0;
  int share = 16;
  bool first = true;     // C is written; otherwise added to
  float* c = nullptr;    // row r of C at c + r * c_stride: 64 floats
  int64_t c_stride = 0;  // a multiple of 16
  TileScratch* scratch = nullptr;
};

struct DenseTileJob {
  const Bf16* a = nullptr;  // [32, 32 * steps]
  int64_t a_stride = 0;
  const Bf16* b = nullptr;  // [steps, 2 tiles, 16 pairs, 16, 2]
  int64_t steps = 0;
  float* c = nullptr;  // [32, 32], written
};

struct TileOps {
  void (*begin)();
  void (*end)();
  void (*sparse)(const SparseTileJob& job);
  void (*dense)(const DenseTileJob& job);
  double (*busy)(int64_t steps);  // multiplies what it has in registers, and returns the flops
};

// Of a unit that is available, and is not none.
const TileOps& tile_ops(TileUnit unit);

// One source each.
extern const TileOps kEmulatedTiles;
extern const TileOps kAvx512Bf16Tiles;
extern const TileOps kAmxTiles;

// Sets the unit up for as long as it lives, on this thread.
class TileSession {
 public:
  explicit TileSession(const TileOps& ops) : ops_(ops) { ops_.begin(); }
  ~TileSession() { ops_.end(); }
  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;

 private:
  const TileOps& ops_;
};

}  // namespace weft
