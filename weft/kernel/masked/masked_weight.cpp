#include "weft/kernel/masked/masked_weight.h"

#include <algorithm>

#include "weft/core/aligned_buffer.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/transpose.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/kernel/masked/masked_rows.h"
#include "weft/kernel/operand_check.h"

namespace weft {
namespace {

// `from` [tokens, cols] transposed; tokens up to a multiple of kPartialSums are zero.
void turn(MatrixView<const float> from, float* to, int64_t stride) {
  transpose({from.data, from.row_stride, from.rows, from.cols, to, stride});
  const int64_t padding = whole_sums(from.rows) - from.rows;
  for (int64_t c = 0; c < from.cols; ++c) std::fill_n(to + c * stride + from.rows, padding, 0.0f);
}

// Some rows, for `tokens` tokens: g [tokens, rows], x transposed into panels of kept.tokens().
void masked_rows(const KeptEntries& kept, MatrixView<const float> g, const float* x_panels,
                 int64_t first_row, bool first, float* values) {
  thread_local AlignedBuffer<float> scratch;
  const int64_t stride = kept.tokens();
  scratch.reserve(static_cast<size_t>(g.cols * stride));
  MaskedJob job;
  job.g = scratch.data();
  job.g_stride = job.x_stride = stride;
  job.rows = g.cols;
  job.index = kept.index();
  job.values = values;
  for (int64_t token = 0; token < g.rows; token += stride) {
    const int64_t tokens = std::min(stride, g.rows - token);
    turn(g.rows_from(token, tokens), scratch.data(), stride);
    job.tokens = whole_sums(tokens);
    job.first = first && token == 0;
    for (int64_t b = 0; b < kept.blocks(); ++b) {
      job.x = x_panels + token * kept.cols() + b * kept.block() * stride;
      job.starts = kept.starts(b) + first_row;
      run_masked_rows(job);
    }
  }
}

// Rows [first, last) of the result.
void put_rows(const KeptEntries& kept, const float* values, int64_t first, int64_t last, float beta,
              MatrixView<float> dw) {
  const uint16_t* index = kept.index();
  for (int64_t r = first; r < last; ++r) {
    if (beta == 0.0f) std::fill_n(dw.row(r), dw.cols, 0.0f);
    for (int64_t b = 0; b < kept.blocks(); ++b) {
      float* to = dw.row(r) + b * kept.block();
      const uint32_t begin = kept.starts(b)[r], end = kept.starts(b)[r + 1];
      for (uint32_t e = begin; e < end; ++e) {
        if (e > begin && index[e] == index[e - 1]) break;  // the last one, repeated
        to[index[e]] += values[e];
      }
    }
  }
}

}  // namespace

void masked_backward_weight(MatrixView<const float> g, MatrixView<const float> x,
                            const KeptEntries& kept, float beta, MatrixView<float> dw) {
  WEFT_CHECK(beta == 0.0f || beta == 1.0f, "beta {}: accepted are 0 and 1", beta);
  WEFT_CHECK(g.rows == x.rows && g.cols == kept.rows() && x.cols == kept.cols() &&
                 dw.rows == kept.rows() && dw.cols == kept.cols() && kept.taps() == 1,
             "g [{}, {}], x [{}, {}], dw [{}, {}] and entries of a [{}, {}] matrix do not match",
             g.rows, g.cols, x.rows, x.cols, dw.rows, dw.cols, kept.rows(), kept.cols());
  const int64_t outs = dw.rows, ins = dw.cols, panel = kept.tokens();
  // Tokens whose xᵀ takes 4 MB: more would not stay in L3 beside what others have there, and fewer
  // would let threads wait for each other more often.
  const int64_t tokens_at_once =
      std::max<int64_t>(1, (int64_t{1} << 20) / (panel * std::max<int64_t>(ins, 1))) * panel;
  // Rows of gᵀ that stay in L2 while the blocks of xᵀ go by, and enough parts for the threads.
  const int64_t parts = threads() == 1 ? 1 : 4 * threads();
  const int64_t rows = std::clamp<int64_t>(std::min(51200 / panel, outs / parts), 16, 1024);
  constexpr int64_t kStrip = 64;  // columns of x transposed at once
  const int64_t strips = (ins + kStrip - 1) / kStrip;
  thread_local AlignedBuffer<float> x_transposed, results;
  x_transposed.reserve(
      static_cast<size_t>(ins * std::min(tokens_at_once, (x.rows + panel - 1) / panel * panel)));
  results.reserve(static_cast<size_t>(kept.size()));
  float* const x_panels = x_transposed.data();
  float* const values = results.data();
  if (x.rows == 0) std::fill_n(values, kept.size(), 0.0f);

  for (int64_t first = 0; first < x.rows; first += tokens_at_once) {
    const int64_t tokens = std::min(tokens_at_once, x.rows - first);
    const auto some_g = g.rows_from(first, tokens), some_x = x.rows_from(first, tokens);
    parallel_for((tokens + panel - 1) / panel * strips, [&](int64_t item) {
      const int64_t token = item / strips * panel, col = item % strips * kStrip;
      const auto part = some_x.rows_from(token, std::min(panel, tokens - token));
      turn(part.cols_from(col, std::min(kStrip, ins - col)), x_panels + token * ins + col * panel,
           panel);
    });
    parallel_for((outs + rows - 1) / rows, [&](int64_t item) {
      const int64_t row = item * rows;
      masked_rows(kept, some_g.cols_from(row, std::min(rows, outs - row)), x_panels, row,
                  first == 0, values);
    });
  }
  parallel_for((outs + rows - 1) / rows, [&](int64_t item) {
    put_rows(kept, values, item * rows, std::min(outs, (item + 1) * rows), beta, dw);
  });
}

void masked_backward_weight(MatrixView<const Bf16> g, MatrixView<const Bf16> x,
                            const KeptEntries& kept, float beta, MatrixView<float> dw) {
  check_operand("masked_backward_weight", "g", g, g.rows, g.cols);
  check_operand("masked_backward_weight", "x", x, g.rows, x.cols);
  masked_backward_weight(expanded(CopyOf::kFirst, g), expanded(CopyOf::kSecond, x), kept, beta, dw);
}

}  // namespace weft
