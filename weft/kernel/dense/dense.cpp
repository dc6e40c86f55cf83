#include "weft/kernel/dense/dense.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/dense/dense_small_batch.h"
#include "weft/kernel/dense/onednn.h"
#include "weft/kernel/operand_check.h"

namespace weft {
namespace {

// Whether the loop for few tokens beats sgemm. Sgemm's time over that of the loop on a Zen 3, one
// core, weights in the cache: with 2 tokens 1.5 to 4.2 from 256 x 256 on, 0.8 to 1.0 below; with 4,
// 0.9 at 256 inputs, 1.1 to 2.5 from 512 on; with 7, 0.7 to 0.9 up to 512, 1.1 to 1.9 from 768 on
// (1.0 at 3072 x 768). With one token 0.9 to 0.95, and less up to 256 x 256; but from memory the
// loop is the faster one where rows are short (dense_small_batch.cpp), and no slower where they are
// long.
bool loop_is_faster(int64_t tokens, const MatrixView<const float>& w) {
  const int64_t weights = w.rows * w.cols;
  if (tokens == 1) return w.row_stride <= kShortRow && weights > 256 * 256;
  return tokens < 8 && w.cols >= 128 * std::min<int64_t>(tokens, 6) && weights >= 256 * 256;
}

// c = op(a) op(b) + beta·c + bias, where op(a): [m, k], op(b): [k, n], c: [m, n].
struct DenseProduct {
  bool transpose_a;
  bool transpose_b;
  int64_t k;
  MatrixView<const float> a;  // [m, k], or [k, m] if transposed
  MatrixView<const float> b;  // [k, n], or [n, k] if transposed
  const float* bias;          // [n] or null
  float beta;
  MatrixView<float> c;
};

template <typename T>
MatrixView<T> cols_from(MatrixView<T> matrix, int64_t first, int64_t count) {
  return {matrix.data + first, matrix.rows, count, matrix.row_stride};
}

// oneDNN's sgemm has two ways (its gemm_driver.cpp): it copies both operands into panels, or, where
// 1/m + 1/n is at least this, it works on them as stored.
double no_copy() { return dense_isa() == "avx3" ? 0.00196 : 0.0038; }

double edge(int64_t rows, int64_t cols) {
  return 1.0 / static_cast<double>(rows) + 1.0 / static_cast<double>(cols);
}

struct Block {
  int64_t rows;
  int64_t cols;
};

// Halves the longer side while that is worth it. Tuned on a Zen 3 (AVX2, 512 KB of L2, 2 cores),
// GFLOP/s of one thread at 2048 tokens x {768 -> 3072, 3072 -> 768, 1024 -> 4096, 4096 -> 1024,
// 2048 -> 2048}, where the peak is 102 and the products in one piece reach 80 to 91:
//
// * Where oneDNN copies, every block copies its operands again: 1024 x 1024 costs 1 to 3 %, 512 x
//   768 costs 4 to 8 %. From 1/m + 1/n = 0.0038 on (0.00196 with AVX-512) it no longer copies, and
//   256 x 256 or 512 x 512 blocks cost 10 to 15 %, and more than half when gᵀ collides (below). So
//   blocks stay above 1024 x 1024, but for the first cut, without which there is no second thread.
//   Fewer blocks than threads are the price on larger machines; tokens are what makes more.
// * Copying both operands of a 1024 x 1024 block ourselves, 256 to 512 deep, to run oneDNN's
//   uncopied kernels on rows that do not collide: 68 to 80, never better.
// * Where oneDNN does not copy anyway, 256 x 256 costs nothing over 512 x 512; 64 x 64 does.
// * Of a second thread oneDNN's own sgemm gains 1.5 at 128^3 and little at 64^3: the first cut.
Block cut(int64_t m, int64_t n, int64_t k) {
  constexpr double kFirstFlops = 1 << 20, kFlops = 1 << 22;
  constexpr double kCheapEdge = 1.0 / 512;
  constexpr int64_t kArea = 256 * 256;
  const auto half = [](int64_t side) { return (side / 2 + 15) / 16 * 16; };

  Block block{m, n};
  while (true) {
    const Block next = block.rows >= block.cols ? Block{half(block.rows), block.cols}
                                                : Block{block.rows, half(block.cols)};
    if (next.rows >= block.rows && next.cols >= block.cols) break;
    const double flops = 2.0 * static_cast<double>(next.rows) * static_cast<double>(next.cols) *
                         static_cast<double>(k);
    const bool first = block.rows == m && block.cols == n;
    if (flops < (first ? kFirstFlops : kFlops)) break;
    const bool copied = edge(block.rows, block.cols) < no_copy();
    const bool cheap =
        copied ? edge(next.rows, next.cols) <= kCheapEdge : next.rows * next.cols >= kArea;
    if (!first && !cheap) break;
    block = next;
  }
  return block;
}

void start_with_bias(const DenseProduct& p) {
  for (int64_t r = 0; r < p.c.rows; ++r) {
    float* row = p.c.row(r);
    if (p.beta == 0) {
      std::copy_n(p.bias, p.c.cols, row);
    } else {
      for (int64_t i = 0; i < p.c.cols; ++i) row[i] += p.bias[i];
    }
  }
}

void sgemm(const DenseProduct& p, float beta) {
  onednn::sgemm({p.transpose_a, p.transpose_b, p.k, p.a, p.b, /*alpha=*/1, beta, p.c});
}

// Where oneDNN does not copy, rows that are a multiple of 1 or 2 KB apart fall into the same few
// sets of the cache, if they are read down a column, as gᵀ is, or a few lines of each, as w and x
// are. On a Zen 3, GFLOP/s with and without a gap: gᵀ of 512 x 512 at 2048 tokens 88 and 60 (rows
// of 512) or 85 and 36 (of 1024); g w at 256 tokens 88 and 66 (of 512) or 88 and 46 (of 1024), and
// at 512 tokens two threads were no faster than one. Copies of g and wᵀ bring nothing.
struct Collisions {
  bool a;
  bool b;
};

Collisions collisions(const DenseProduct& p) {
  constexpr int64_t kWorthCopying = 32;  // rows that a copy of w serves
  const bool direct = edge(p.c.rows, p.c.cols) >= no_copy();
  return {direct && p.transpose_a && p.a.row_stride % 256 == 0,
          direct && !p.transpose_b && p.b.row_stride % 512 == 0 && p.c.rows >= kWorthCopying};
}

// Some rows of a matrix at a time, copied to where they do not collide.
class Apart {
 public:
  Apart(MatrixView<const float> matrix, int64_t rows)
      : matrix_(matrix), stride_((matrix.cols + 15) / 16 * 16) {
    if (stride_ % 64 == 0) stride_ += 16;
    floats_.reset(new float[static_cast<size_t>(rows * stride_)]);
  }

  MatrixView<const float> copy(int64_t first, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
      std::copy_n(matrix_.row(first + r), matrix_.cols, floats_.get() + r * stride_);
    }
    return {floats_.get(), rows, matrix_.cols, stride_};
  }

 private:
  MatrixView<const float> matrix_;
  int64_t stride_;
  std::unique_ptr<float[]> floats_;
};

// The same, some of the depth at a time, with copies of what collides.
void sgemm_apart(const DenseProduct& p, const Collisions& collide, float beta) {
  constexpr int64_t kMostFloats = 256 * 592;  // a block of 512, or less depth of a longer one
  const int64_t longest = std::max(collide.a ? p.c.rows : 0, collide.b ? p.c.cols : 0);
  const int64_t depth = std::clamp<int64_t>(kMostFloats / (longest + 16), 1, p.k);
  std::optional<Apart> a, b;
  if (collide.a) a.emplace(p.a, depth);
  if (collide.b) b.emplace(p.b, depth);
  const auto part_of = [](const MatrixView<const float>& operand, bool depth_is_rows, int64_t first,
                          int64_t count) {
    return depth_is_rows ? operand.rows_from(first, count) : cols_from(operand, first, count);
  };
  DenseProduct part = p;
  for (int64_t first = 0; first < p.k; first += depth) {
    part.k = std::min(depth, p.k - first);
    part.a = a ? a->copy(first, part.k) : part_of(p.a, p.transpose_a, first, part.k);
    part.b = b ? b->copy(first, part.k) : part_of(p.b, !p.transpose_b, first, part.k);
    sgemm(part, first == 0 ? beta : 1);
  }
}

void run_block(const DenseProduct& p) {
  float beta = p.beta;
  if (p.bias != nullptr) {
    start_with_bias(p);
    beta = 1;
  }
  if (p.k == 0) {
    if (beta == 0) {
      for (int64_t r = 0; r < p.c.rows; ++r) std::fill_n(p.c.row(r), p.c.cols, 0.0f);
    }
    return;
  }
  const onednn::OneThread one_thread;
  const Collisions collide = collisions(p);
  collide.a || collide.b ? sgemm_apart(p, collide, beta) : sgemm(p, beta);
}

void run(const DenseProduct& p) {
  if (p.c.rows == 0 || p.c.cols == 0) return;
  onednn::prepare();
  const Block block = cut(p.c.rows, p.c.cols, p.k);
  const int64_t across = (p.c.cols + block.cols - 1) / block.cols;
  const int64_t down = (p.c.rows + block.rows - 1) / block.rows;
  const auto item = [&](int64_t i) {
    const int64_t row = i / across * block.rows, col = i % across * block.cols;
    const int64_t rows = std::min(block.rows, p.c.rows - row);
    const int64_t cols = std::min(block.cols, p.c.cols - col);
    DenseProduct part = p;
    part.a = p.transpose_a ? cols_from(p.a, row, rows) : p.a.rows_from(row, rows);
    part.b = p.transpose_b ? p.b.rows_from(col, cols) : cols_from(p.b, col, cols);
    part.c = cols_from(p.c.rows_from(row, rows), col, cols);
    if (p.bias != nullptr) part.bias = p.bias + col;
    run_block(part);
  };
  across* down == 1 ? item(0) : parallel_for(across * down, item);
}

template <typename T>
void check_matrix(const char* product, const char* name, MatrixView<T> matrix, int64_t rows,
                  int64_t cols) {
  WEFT_CHECK(matrix.rows == rows && matrix.cols == cols, "{}: {} is {} x {}, accepted is {} x {}",
             product, name, matrix.rows, matrix.cols, rows, cols);
  WEFT_CHECK(rows >= 0 && cols >= 0 && matrix.row_stride >= cols,
             "{}: {} is {} x {} with rows {} apart: accepted are sizes of at least 0 and rows at "
             "least {} apart",
             product, name, rows, cols, matrix.row_stride, cols);
  WEFT_CHECK(matrix.data != nullptr || rows == 0 || cols == 0, "{}: {} is {} x {} at null", product,
             name, rows, cols);
}

// Tokens that are expanded together: blocks are not cut below this, and copies stay small beside
// the activations of a network.
constexpr int64_t kExpandedTokens = 1024;

// Calls product(rows of a, rows of c), as floats, for some tokens at a time.
template <typename Run>
void by_tokens(MatrixView<const Bf16> a, MatrixView<Bf16> c, float beta, Run product) {
  for (int64_t first = 0; first < a.rows; first += kExpandedTokens) {
    const int64_t tokens = std::min(kExpandedTokens, a.rows - first);
    const MatrixView<Bf16> to = c.rows_from(first, tokens);
    const MatrixView<const float> from = expanded(CopyOf::kFirst, a.rows_from(first, tokens));
    const MatrixView<float> sums(fp32_copy(CopyOf::kResult, tokens * c.cols), tokens, c.cols);
    if (beta != 0) expand(to, sums);
    product(from, sums);
    round_to_bf16(sums, to);
  }
}

}  // namespace

void dense_forward(MatrixView<const float> x, MatrixView<const float> w, const float* bias,
                   float beta, MatrixView<float> y) {
  check_matrix("dense_forward", "x", x, x.rows, x.cols);
  check_matrix("dense_forward", "w", w, w.rows, x.cols);
  check_matrix("dense_forward", "y", y, x.rows, w.rows);
  check_beta("dense_forward", beta);
  if (loop_is_faster(x.rows, w)) return dense_forward_small_batch(x, w, bias, beta, y);
  run({false, true, x.cols, x, w, bias, beta, y});
}

void dense_backward_data(MatrixView<const float> g, MatrixView<const float> w, float beta,
                         MatrixView<float> dx) {
  check_matrix("dense_backward_data", "g", g, g.rows, g.cols);
  check_matrix("dense_backward_data", "w", w, g.cols, w.cols);
  check_matrix("dense_backward_data", "dx", dx, g.rows, w.cols);
  check_beta("dense_backward_data", beta);
  run({false, false, g.cols, g, w, nullptr, beta, dx});
}

void dense_backward_weight(MatrixView<const float> g, MatrixView<const float> x, float beta,
                           MatrixView<float> dw) {
  check_matrix("dense_backward_weight", "g", g, g.rows, g.cols);
  check_matrix("dense_backward_weight", "x", x, g.rows, x.cols);
  check_matrix("dense_backward_weight", "dw", dw, g.cols, x.cols);
  check_beta("dense_backward_weight", beta);
  run({true, false, g.rows, g, x, nullptr, beta, dw});
}

void dense_forward(MatrixView<const Bf16> x, MatrixView<const Bf16> w, const float* bias,
                   float beta, MatrixView<Bf16> y) {
  check_operand("dense_forward", "x", x, x.rows, x.cols);
  check_operand("dense_forward", "w", w, w.rows, x.cols);
  check_operand("dense_forward", "y", y, x.rows, w.rows);
  const MatrixView<const float> wide_w = expanded(CopyOf::kSecond, w);
  by_tokens(x, y, beta, [&](MatrixView<const float> some_x, MatrixView<float> sums) {
    dense_forward(some_x, wide_w, bias, beta, sums);
  });
}

void dense_backward_data(MatrixView<const Bf16> g, MatrixView<const Bf16> w, float beta,
                         MatrixView<Bf16> dx) {
  check_operand("dense_backward_data", "g", g, g.rows, g.cols);
  check_operand("dense_backward_data", "w", w, g.cols, w.cols);
  check_operand("dense_backward_data", "dx", dx, g.rows, w.cols);
  const MatrixView<const float> wide_w = expanded(CopyOf::kSecond, w);
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
    dense_backward_weight(expanded(CopyOf::kFirst, g.rows_from(first, tokens)),
                          expanded(CopyOf::kSecond, x.rows_from(first, tokens)),
                          first == 0 ? beta : 1.0f, dw);
    first += tokens;
  } while (first < g.rows);
}

std::string dense_isa() { return onednn::isa(); }

}  // namespace weft
