// The dense products in bf16 on a tile unit (tile_product.h).
#include "weft/kernel/dense/dense.h"
#include "weft/kernel/operand_check.h"
#include "weft/kernel/tile/tile_product.h"

namespace weft {
void dense_forward(MatrixView<const Bf16> x, const DenseTiles& w, const float* bias, float beta,
                   MatrixView<Bf16> y) {
  check_operand("dense_forward", "x", x, x.rows, w.depth());
  check_operand("dense_forward", "y", y, x.rows, w.cols());
  check_beta("dense_forward", beta);
  multiply_dense_tiles(DenseTileCall<Bf16>{x, &w, bias, beta, y});
}

void dense_backward_data(MatrixView<const Bf16> g, const DenseTiles& w, float beta,
                         MatrixView<Bf16> dx) {
  check_operand("dense_backward_data", "g", g, g.rows, w.depth());
  check_operand("dense_backward_data", "dx", dx, g.rows, w.cols());
  check_beta("dense_backward_data", beta);
  multiply_dense_tiles(DenseTileCall<Bf16>{g, &w, nullptr, beta, dx});
}

void dense_backward_weight_on_tiles(MatrixView<const Bf16> g, MatrixView<const Bf16> x, float beta,
                                    MatrixView<float> dw) {
  check_operand("dense_backward_weight", "x", x, x.rows, x.cols);
  check_operand("dense_backward_weight", "g", g, x.rows, g.cols);
  check_operand("dense_backward_weight", "dw", dw, g.cols, x.cols);
  check_beta("dense_backward_weight", beta);
  // Fresh pages would cost as much as the copies: the thread keeps them.
  thread_local AlignedBuffer<Bf16> turned;
  thread_local DenseTiles tiles;
  turned.reserve(static_cast<size_t>(g.rows * g.cols));
  const MatrixView<Bf16> g_transposed(turned.data(), g.cols, g.rows);
  transpose_bf16(g, g_transposed);
  tiles.pack(x, /*transposed=*/false);
  multiply_dense_tiles(DenseTileCall<float>{g_transposed, &tiles, nullptr, beta, dw});
}

}  // namespace weft
