#include "weft/kernel/panel/panel.h"

#include "weft/kernel/operand_check.h"
#include "weft/kernel/panel/linear_operands.h"
#include "weft/kernel/panel/panel_product.h"

namespace weft {
namespace {

template <typename T>
void forward_as(MatrixView<const T> x, const PackedMatrix& w, const float* bias, float beta,
                MatrixView<T> y) {
  check_beta(beta);
  check_operand("x", x, x.rows, w.depth());
  check_operand("y", y, x.rows, w.rows());
  multiply_panels(w, x.rows, transposed_source(x), TransposedSink<T>(y, bias, beta));
}

template <typename T>
void backward_data_as(MatrixView<const T> g, const PackedMatrix& w_transposed, float beta,
                      MatrixView<T> dx) {
  check_beta(beta);
  check_operand("g", g, g.rows, w_transposed.depth());
  check_operand("dx", dx, g.rows, w_transposed.rows());
  multiply_panels(w_transposed, g.rows, transposed_source(g), TransposedSink<T>(dx, nullptr, beta));
}

template <typename T>
void backward_weight_as(const PackedMatrix& g_transposed, MatrixView<const T> x, float beta,
                        MatrixView<float> dw) {
  check_beta(beta);
  check_operand("x", x, g_transposed.depth(), x.cols);
  check_operand("dw", dw, g_transposed.rows(), x.cols);
  multiply_panels(g_transposed, x.cols, plain_source(x), PlainSink(dw, beta));
}

}  // namespace

void panel_forward(MatrixView<const float> x, const PackedMatrix& w, const float* bias, float beta,
                   MatrixView<float> y) {
  forward_as(x, w, bias, beta, y);
}
void panel_forward(MatrixView<const Bf16> x, const PackedMatrix& w, const float* bias, float beta,
                   MatrixView<Bf16> y) {
  forward_as(x, w, bias, beta, y);
}

void panel_backward_data(MatrixView<const float> g, const PackedMatrix& w_transposed, float beta,
                         MatrixView<float> dx) {
  backward_data_as(g, w_transposed, beta, dx);
}
void panel_backward_data(MatrixView<const Bf16> g, const PackedMatrix& w_transposed, float beta,
                         MatrixView<Bf16> dx) {
  backward_data_as(g, w_transposed, beta, dx);
}

void panel_backward_weight(const PackedMatrix& g_transposed, MatrixView<const float> x, float beta,
                           MatrixView<float> dw) {
  backward_weight_as(g_transposed, x, beta, dw);
}
void panel_backward_weight(const PackedMatrix& g_transposed, MatrixView<const Bf16> x, float beta,
                           MatrixView<float> dw) {
  backward_weight_as(g_transposed, x, beta, dw);
}

}  // namespace weft
