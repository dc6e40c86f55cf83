// Products of bf16 operands in fp32 arithmetic: operands are expanded, the fp32 product runs, its
// result is rounded. What has a loop of its own for bf16 is elsewhere (sparse.cpp).
//
// Sizes are checked before anything is expanded, by what the fp32 products take.
#include <algorithm>

#include "weft/core/error.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/conv/dense_conv.h"
#include "weft/kernel/conv/sparse_conv.h"
#include "weft/kernel/dense/dense.h"
#include "weft/kernel/masked/masked_weight.h"
#include "weft/kernel/operand_check.h"

namespace weft {
namespace {

// Tokens that are expanded together: the blocks of a dense product are not cut below this
// (dense.cpp), and copies stay small beside the activations of a network.
constexpr int64_t kExpandedTokens = 1024;

MatrixView<float> expanded(MatrixView<const Bf16> m, CopyOf place) {
  const MatrixView<float> wide(fp32_copy(place, m.rows * m.cols), m.rows, m.cols);
  expand(m, wide);
  return wide;
}

// Calls product(rows of a, rows of c), as floats, for some tokens at a time.
template <typename Product>
void by_tokens(MatrixView<const Bf16> a, MatrixView<Bf16> c, float beta, Product product) {
  for (int64_t first = 0; first < a.rows; first += kExpandedTokens) {
    const int64_t tokens = std::min(kExpandedTokens, a.rows - first);
    const MatrixView<Bf16> to = c.rows_from(first, tokens);
    const MatrixView<float> from = expanded(a.rows_from(first, tokens), CopyOf::kFirst);
    const MatrixView<float> sums(fp32_copy(CopyOf::kResult, tokens * c.cols), tokens, c.cols);
    if (beta != 0) expand(to, sums);
    product(MatrixView<const float>(from), sums);
    round_to_bf16(sums, to);
  }
}

const float* expanded(const Bf16* from, int64_t size, const char* name, CopyOf place) {
  WEFT_CHECK(from != nullptr || size == 0, "{} is null", name);
  float* wide = fp32_copy(place, size);
  expand(from, size, wide);
  return wide;
}

// Calls product(sums) and rounds them into `to`, [size].
template <typename Product>
void rounded_result(Bf16* to, int64_t size, const char* name, float beta, Product product) {
  WEFT_CHECK(to != nullptr || size == 0, "{} is null", name);
  float* sums = fp32_copy(CopyOf::kResult, size);
  if (beta != 0) expand(to, size, sums);
  product(sums);
  round_to_bf16(sums, size, to);
}

}  // namespace

void dense_forward(MatrixView<const Bf16> x, MatrixView<const Bf16> w, const float* bias,
                   float beta, MatrixView<Bf16> y) {
  check_operand("dense_forward", "x", x, x.rows, x.cols);
  check_operand("dense_forward", "w", w, w.rows, x.cols);
  check_operand("dense_forward", "y", y, x.rows, w.rows);
  const MatrixView<const float> wide_w = expanded(w, CopyOf::kSecond);
  by_tokens(x, y, beta, [&](MatrixView<const float> some_x, MatrixView<float> sums) {
    dense_forward(some_x, wide_w, bias, beta, sums);
  });
}

void dense_backward_data(MatrixView<const Bf16> g, MatrixView<const Bf16> w, float beta,
                         MatrixView<Bf16> dx) {
  check_operand("dense_backward_data", "g", g, g.rows, g.cols);
  check_operand("dense_backward_data", "w", w, g.cols, w.cols);
  check_operand("dense_backward_data", "dx", dx, g.rows, w.cols);
  const MatrixView<const float> wide_w = expanded(w, CopyOf::kSecond);
  by_tokens(g, dx, beta, [&](MatrixView<const float> some_g, MatrixView<float> sums) {
    dense_backward_data(some_g, wide_w, beta, sums);
  });
}

// Blocks of tokens are added one after the other, whatever the threads.
void dense_backward_weight(MatrixView<const Bf16> g, MatrixView<const Bf16> x, float beta,
                           MatrixView<float> dw) {
  check_operand("dense_backward_weight", "g", g, g.rows, g.cols);
  check_operand("dense_backward_weight", "x", x, g.rows, x.cols);
  int64_t first = 0;
  do {  // once without tokens: dw is beta·dw
    const int64_t tokens = std::min(kExpandedTokens, g.rows - first);
    dense_backward_weight(expanded(g.rows_from(first, tokens), CopyOf::kFirst),
                          expanded(x.rows_from(first, tokens), CopyOf::kSecond),
                          first == 0 ? beta : 1.0f, dw);
    first += tokens;
  } while (first < g.rows);
}

void masked_backward_weight(MatrixView<const Bf16> g, MatrixView<const Bf16> x,
                            const KeptEntries& kept, float beta, MatrixView<float> dw) {
  check_operand("masked_backward_weight", "g", g, g.rows, g.cols);
  check_operand("masked_backward_weight", "x", x, g.rows, x.cols);
  masked_backward_weight(expanded(g, CopyOf::kFirst), expanded(x, CopyOf::kSecond), kept, beta, dw);
}

void dense_conv_forward(const ConvShape& shape, const Bf16* x, const Bf16* w, const float* bias,
                        float beta, Bf16* y) {
  shape.check();
  const float* wide_x = expanded(x, shape.x_size(), "x", CopyOf::kFirst);
  const float* wide_w = expanded(w, shape.w_size(), "w", CopyOf::kSecond);
  rounded_result(y, shape.y_size(), "y", beta,
                 [&](float* sums) { dense_conv_forward(shape, wide_x, wide_w, bias, beta, sums); });
}

void dense_conv_backward_data(const ConvShape& shape, const Bf16* g, const Bf16* w, float beta,
                              Bf16* dx) {
  shape.check();
  const float* wide_g = expanded(g, shape.y_size(), "g", CopyOf::kFirst);
  const float* wide_w = expanded(w, shape.w_size(), "w", CopyOf::kSecond);
  rounded_result(dx, shape.x_size(), "dx", beta,
                 [&](float* sums) { dense_conv_backward_data(shape, wide_g, wide_w, beta, sums); });
}

void dense_conv_backward_weight(const ConvShape& shape, const Bf16* g, const Bf16* x, float beta,
                                float* dw) {
  shape.check();
  const float* wide_g = expanded(g, shape.y_size(), "g", CopyOf::kFirst);
  const float* wide_x = expanded(x, shape.x_size(), "x", CopyOf::kSecond);
  dense_conv_backward_weight(shape, wide_g, wide_x, beta, dw);
}

void sparse_conv_forward(const ConvShape& shape, const Bf16* x, const PackedConv& w,
                         const float* bias, float beta, Bf16* y) {
  shape.check();
  const float* wide_x = expanded(x, shape.x_size(), "x", CopyOf::kFirst);
  rounded_result(y, shape.y_size(), "y", beta,
                 [&](float* sums) { sparse_conv_forward(shape, wide_x, w, bias, beta, sums); });
}

void sparse_conv_backward_data(const ConvShape& shape, const Bf16* g,
                               const PackedConv& w_transposed, float beta, Bf16* dx) {
  shape.check();
  const float* wide_g = expanded(g, shape.y_size(), "g", CopyOf::kFirst);
  rounded_result(dx, shape.x_size(), "dx", beta, [&](float* sums) {
    sparse_conv_backward_data(shape, wide_g, w_transposed, beta, sums);
  });
}

void sparse_conv_backward_weight(const ConvShape& shape, const PackedConv& g, const Bf16* x,
                                 float beta, float* dw) {
  shape.check();
  sparse_conv_backward_weight(shape, g, expanded(x, shape.x_size(), "x", CopyOf::kFirst), beta, dw);
}

}  // namespace weft
