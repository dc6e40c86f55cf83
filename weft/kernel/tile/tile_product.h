// Products in bf16 on a tile unit, as nests of loops around tile_ops.h. Sums are fp32; the result
// does not depend on the number of threads.
//
// Sparse, from a tile pack A [rows, depth] and a dense B [depth, cols]: columns are cut into
// stripes of 64, a few stripes are copied at a time (B stays in L2), and for each block of sharing
// rows all of these are computed (so A is read once for them). C goes to a TileSink as in
// panel_product.h.
//
// Dense, from A [rows, depth] as stored and DenseTiles of B [depth, cols]: C in blocks of 32 x 32.
#pragma once

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"
#include "weft/kernel/panel/panel_product.h"
#include "weft/kernel/tile/tile_unit.h"
#include "weft/pack/dense_tiles.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// B, dense: the activations, or their transpose.
struct TileOperand {
  MatrixView<const Bf16> values;  // [depth, cols], or [cols, depth] if transposed
  bool transposed = false;
};
void multiply_tiles(const PackedMatrix& a, int64_t cols, const TileOperand& b, const TileSink& c,
                    TileUnit unit = tile_unit());

// c = a b + bias + beta * c. T is Bf16, rounded to nearest even, or float.
template <typename T>
struct DenseTileCall {
  MatrixView<const Bf16> a;  // [rows, depth]
  const DenseTiles* b;       // [depth, cols]
  const float* bias;         // [cols] or null
  float beta;                // 0 or 1
  MatrixView<T> c;           // [rows, cols]
};
void multiply_dense_tiles(const DenseTileCall<Bf16>& call, TileUnit unit = tile_unit());
void multiply_dense_tiles(const DenseTileCall<float>& call, TileUnit unit = tile_unit());

// to = the transpose of from, in bf16.
void transpose_bf16(MatrixView<const Bf16> from, MatrixView<Bf16> to);

}  // namespace weft
