#include "weft/kernel/tile/tile.h"

#include "weft/kernel/operand_check.h"
#include "weft/kernel/panel/linear_operands.h"
#include "weft/kernel/tile/tile_product.h"

namespace weft {

void tile_forward(MatrixView<const Bf16> x, const PackedMatrix& w, const float* bias, float beta,
                  MatrixView<Bf16> y) {
  check_beta(beta);
  check_operand("x", x, x.rows, w.depth());
  check_operand("y", y, x.rows, w.rows());
  multiply_tiles(w, x.rows, {x, /*transposed=*/true}, TransposedSink<Bf16>(y, bias, beta));
}

void tile_backward_data(MatrixView<const Bf16> g, const PackedMatrix& w_transposed, float beta,
                        MatrixView<Bf16> dx) {
  check_beta(beta);
  check_operand("g", g, g.rows, w_transposed.depth());
  check_operand("dx", dx, g.rows, w_transposed.rows());
  multiply_tiles(w_transposed, g.rows, {g, /*transposed=*/true},
                 TransposedSink<Bf16>(dx, nullptr, beta));
}

void tile_backward_weight(const PackedMatrix& g_transposed, MatrixView<const Bf16> x, float beta,
                          MatrixView<float> dw) {
  check_beta(beta);
  check_operand("x", x, g_transposed.depth(), x.cols);
  check_operand("dw", dw, g_transposed.rows(), x.cols);
  multiply_tiles(g_transposed, x.cols, {x, /*transposed=*/false}, PlainSink(dw, beta));
}

void dense_tile_forward(MatrixView<const Bf16> x, const DenseTiles& w, const float* bias,
                        float beta, MatrixView<Bf16> y) {
  check_operand("x", x, x.rows, w.depth());
  check_operand("y", y, x.rows, w.cols());
  check_beta(beta);
  multiply_dense_tiles(DenseTileCall<Bf16>{x, &w, bias, beta, y});
}

void dense_tile_backward_data(MatrixView<const Bf16> g, const DenseTiles& w, float beta,
                              MatrixView<Bf16> dx) {
  check_operand("g", g, g.rows, w.depth());
  check_operand("dx", dx, g.rows, w.cols());
  check_beta(beta);
  multiply_dense_tiles(DenseTileCall<Bf16>{g, &w, nullptr, beta, dx});
}

void dense_tile_backward_weight(MatrixView<const Bf16> g, MatrixView<const Bf16> x, float beta,
                                MatrixView<float> dw) {
  check_operand("x", x, x.rows, x.cols);
  check_operand("g", g, x.rows, g.cols);
  check_operand("dw", dw, g.cols, x.cols);
  check_beta(beta);
  // Fresh pages would cost as much as the copies: the thread keeps them.
  thread_local AlignedBuffer<Bf16> buffer;
  thread_local DenseTiles tiles;
  buffer.reserve(static_cast<size_t>(g.rows * g.cols));
  const MatrixView<Bf16> g_transposed(buffer.data(), g.cols, g.rows);
  transpose_bf16(g, g_transposed);
  tiles.pack(x, /*transposed=*/false);
  multiply_dense_tiles(DenseTileCall<float>{g_transposed, &tiles, nullptr, beta, dw});
}

}  // namespace weft
