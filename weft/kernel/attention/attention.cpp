// What was tried (Zen 3, AVX2, other work on the machine; ms of one thread for one sample, forward
// and backward, medians of 41 interleaved runs), at tokens x width / head_width:
//
//                                        128 x 256/32   256 x 768/64   512 x 256/32   512 x 768/64
//   as it is: 64 rows, no copies                 1.00            8.5           12.4           32.5
//   q, k, v and gradients copied together        1.02            8.9           11.6           31.2
//   the same with 32 rows                        1.05            9.0           12.0           32.5
//   the same with 128 rows                       1.16            9.6           12.1           32.6
//   as it is, probabilities kept                 0.92            7.4           12.2           30.5
//
// Kept probabilities would save 1 to 13 % of the time and take as much memory as heads · tokens²
// per sample and layer: more than qkv itself from tokens = 3 · head_width on.
#include "weft/kernel/attention/attention.h"

#include <algorithm>
#include <cmath>

#include "weft/core/aligned_buffer.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/kernel/attention/softmax_rows.h"
#include "weft/kernel/dense/onednn.h"

namespace weft {
namespace {

using onednn::sgemm;

constexpr int64_t kRows = 64;

// One head of one sample.
class Head {
 public:
  Head(const AttentionShape& shape, int64_t item)
      : shape_(shape), item_(item), sample_(item / shape.heads), head_(item % shape.heads) {}

  // All of them [tokens, head_width].
  template <typename T>
  MatrixView<T> q(T* qkv) const {
    return view(qkv, 0, 3);
  }
  template <typename T>
  MatrixView<T> k(T* qkv) const {
    return view(qkv, 1, 3);
  }
  template <typename T>
  MatrixView<T> v(T* qkv) const {
    return view(qkv, 2, 3);
  }
  template <typename T>
  MatrixView<T> out(T* out) const {
    return view(out, 0, 1);
  }

  template <typename T>
  RowStats<T> stats(T* stats) const {
    const int64_t heads = shape_.batch * shape_.heads;
    return {stats + item_ * shape_.tokens, stats + (heads + item_) * shape_.tokens};
  }

 private:
  // One of `parts` that are adjacent in a row.
  template <typename T>
  MatrixView<T> view(T* data, int64_t part, int64_t parts) const {
    const int64_t stride = parts * shape_.width, head_width = shape_.head_width();
    return {data + sample_ * shape_.tokens * stride + part * shape_.width + head_ * head_width,
            shape_.tokens, head_width, stride};
  }

  const AttentionShape& shape_;
  int64_t item_, sample_, head_;
};

// Some rows, and the columns before the first that none of them attends to.
struct QueryBlock {
  int64_t first;
  int64_t rows;
  int64_t cols;
  Counts counts;

  QueryBlock(const AttentionShape& shape, int64_t first)
      : first(first),
        rows(std::min(kRows, shape.tokens - first)),
        cols(shape.causal ? first + rows : shape.tokens),
        counts(shape.causal ? Counts{first + 1, 1} : Counts{shape.tokens, 0}) {}
};

// Scores of a block, of this thread: `which` of two. Rows do not collide in the cache (dense.cpp).
MatrixView<float> scratch(const AttentionShape& shape, const QueryBlock& block, int64_t which) {
  thread_local AlignedBuffer<float> buffer;
  int64_t stride = (shape.tokens + kSoftmaxPad - 1) / kSoftmaxPad * kSoftmaxPad;
  if (stride % 64 == 0) stride += kSoftmaxPad;
  buffer.reserve(static_cast<size_t>(2 * kRows * stride));
  return {buffer.data() + which * kRows * stride, block.rows, block.cols, stride};
}

float scale_of(const AttentionShape& shape) {
  return 1 / std::sqrt(static_cast<float>(shape.head_width()));
}

void forward_block(const AttentionShape& shape, const Head& head, const QueryBlock& b,
                   const float* qkv, float* all_out, float* all_stats) {
  const int64_t depth = shape.head_width();
  const MatrixView<const float> q = head.q(qkv).rows_from(b.first, b.rows);
  const MatrixView<const float> k = head.k(qkv).rows_from(0, b.cols);
  const MatrixView<const float> v = head.v(qkv).rows_from(0, b.cols);
  const MatrixView<float> out = head.out(all_out).rows_from(b.first, b.rows);
  const RowStats<float> stats = head.stats(all_stats).from(b.first);
  const MatrixView<float> s = scratch(shape, b, 0);

  sgemm({false, true, depth, q, k, scale_of(shape), 0, s});
  softmax_rows_forward(s, b.counts, stats);
  sgemm({false, false, b.cols, s, v, 1, 0, out});
  for (int64_t r = 0; r < b.rows; ++r) {
    float* row = out.row(r);
    for (int64_t i = 0; i < depth; ++i) row[i] *= stats.inverse_sum[r];
  }
}

// dk and dv are sums over blocks: the last block, which has all columns, comes first.
void backward_block(const AttentionShape& shape, const Head& head, const QueryBlock& b,
                    const float* qkv, const float* all_stats, const float* d_out, float* d_qkv) {
  const int64_t depth = shape.head_width();
  const float scale = scale_of(shape);
  const MatrixView<const float> q = head.q(qkv).rows_from(b.first, b.rows);
  const MatrixView<const float> k = head.k(qkv).rows_from(0, b.cols);
  const MatrixView<const float> v = head.v(qkv).rows_from(0, b.cols);
  const MatrixView<const float> g = head.out(d_out).rows_from(b.first, b.rows);
  const MatrixView<float> dq = head.q(d_qkv).rows_from(b.first, b.rows);
  const MatrixView<float> dk = head.k(d_qkv).rows_from(0, b.cols);
  const MatrixView<float> dv = head.v(d_qkv).rows_from(0, b.cols);
  const RowStats<const float> stats = head.stats(all_stats).from(b.first);
  const MatrixView<float> p = scratch(shape, b, 0), ds = scratch(shape, b, 1);
  const float beta = b.first + b.rows == shape.tokens ? 0 : 1;

  sgemm({false, true, depth, q, k, scale, 0, p});  // scores, until the softmax
  sgemm({false, true, depth, g, v, 1, 0, ds});     // dp, until then
  softmax_rows_backward(p, ds, b.counts, stats);
  sgemm({true, false, b.rows, p, g, 1, beta, dv});
  sgemm({true, false, b.rows, ds, q, scale, beta, dk});
  sgemm({false, false, b.cols, ds, k, scale, 0, dq});
}

void check(const char* pass, const AttentionShape& shape, bool all_there) {
  WEFT_CHECK(shape.batch >= 0 && shape.tokens >= 0 && shape.heads >= 1 && shape.width >= 1,
             "{}: batch {}, tokens {}, heads {}, width {}: accepted are at least 0, 0, 1, 1", pass,
             shape.batch, shape.tokens, shape.heads, shape.width);
  WEFT_CHECK(shape.width % shape.heads == 0, "{}: a width of {} is not a multiple of {} heads",
             pass, shape.width, shape.heads);
  WEFT_CHECK(all_there || shape.batch == 0 || shape.tokens == 0, "{}: an argument is null", pass);
}

}  // namespace

void attention_forward(const AttentionShape& shape, const float* qkv, float* out, float* stats) {
  check("attention_forward", shape, qkv && out && stats);
  onednn::prepare();
  parallel_for(shape.batch * shape.heads, [&](int64_t item) {
    const onednn::OneThread one_thread;
    const Head head(shape, item);
    for (int64_t first = 0; first < shape.tokens; first += kRows) {
      forward_block(shape, head, QueryBlock(shape, first), qkv, out, stats);
    }
  });
}

void attention_backward(const AttentionShape& shape, const float* qkv, const float* stats,
                        const float* d_out, float* d_qkv) {
  check("attention_backward", shape, qkv && stats && d_out && d_qkv);
  onednn::prepare();
  const int64_t blocks = (shape.tokens + kRows - 1) / kRows;
  parallel_for(shape.batch * shape.heads, [&](int64_t item) {
    const onednn::OneThread one_thread;
    const Head head(shape, item);
    for (int64_t i = blocks - 1; i >= 0; --i) {
      backward_block(shape, head, QueryBlock(shape, i * kRows), qkv, stats, d_out, d_qkv);
    }
  });
}

}  // namespace weft
