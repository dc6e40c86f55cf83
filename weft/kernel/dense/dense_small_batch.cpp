// Lanes run along a row of w; four rows at a time, so that a vector of x is loaded once for four
// multiply-adds, and two vectors of each row, so that there are eight of them in flight. The rows
// of a block stay in L1 for the tokens that follow the first.
//
// What was measured (AMD Zen 3, AVX2, one core, other work beside it, one token, matrices that take
// turns so that they come from L3 or memory; best of 25, us): oneDNN's sgemm 36, 502, 413 at
// 768 x 256, 3072 x 768, 768 x 3072; this loop without prefetch 33, 496, 406; with one per cache
// line, 8 KB ahead, 20, 589, 488 (1 to 4 KB: 24 to 30 for the first). So short rows are prefetched,
// where the CPU restarts with every row, and long ones are left to it. In L2
// and below, sgemm is the faster by a sixth or more (256 x 256: 3.4 us, 4.0 here). With 4 tokens
// sgemm takes 1.1 to 3.2 times as long as this loop, with 8 0.8 to 2.2, with 16 0.7 to 1.2.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/dense/dense_small_batch.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>

#include "weft/core/parallel.h"
#include "weft/kernel/dense/dense_small_batch.h"

// Not in Highway's namespace: the same for every target.
#ifndef WEFT_KERNEL_DENSE_SMALL_BATCH
#define WEFT_KERNEL_DENSE_SMALL_BATCH
namespace weft {

struct DenseFewCall {
  MatrixView<const float> x;
  MatrixView<const float> w;
  const float* bias;
  bool add;
  MatrixView<float> y;
};

}  // namespace weft
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Vec = hn::VFromD<D>;

// May point past the end, which a prefetch does not mind.
HWY_INLINE void PrefetchAhead(const float* from) {
  constexpr uintptr_t kAhead = 8192;  // bytes
  hwy::Prefetch(reinterpret_cast<const float*>(reinterpret_cast<uintptr_t>(from) + kAhead));
}

// y[r] of kRows rows from `row` on, for one token.
template <int kRows, bool kShort>
HWY_INLINE void DotRows(const DenseFewCall& call, int64_t row, int64_t token) {
  const D d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t ins = call.w.cols, stride = call.w.row_stride;
  const float* HWY_RESTRICT x = call.x.data + token * call.x.row_stride;
  const float* HWY_RESTRICT w = call.w.data + row * stride;
  Vec even[kRows], odd[kRows];
  for (int r = 0; r < kRows; ++r) even[r] = odd[r] = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= ins; i += 2 * lanes) {
    const Vec x0 = hn::LoadU(d, x + i), x1 = hn::LoadU(d, x + i + lanes);
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kShort) PrefetchAhead(w + r * stride + i);
      even[r] = hn::MulAdd(x0, hn::LoadU(d, w + r * stride + i), even[r]);
      odd[r] = hn::MulAdd(x1, hn::LoadU(d, w + r * stride + i + lanes), odd[r]);
    }
  }
  for (; i + lanes <= ins; i += lanes) {
    const Vec x0 = hn::LoadU(d, x + i);
    HWY_UNROLL(4)
    for (int r = 0; r < kRows; ++r) {
      even[r] = hn::MulAdd(x0, hn::LoadU(d, w + r * stride + i), even[r]);
    }
  }
  float* y = call.y.data + token * call.y.row_stride + row;
  for (int r = 0; r < kRows; ++r) {
    float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(even[r], odd[r])));
    for (int64_t rest = i; rest < ins; ++rest) sum += x[rest] * w[r * stride + rest];
    const float with_bias = call.bias ? sum + call.bias[row + r] : sum;
    y[r] = call.add ? with_bias + y[r] : with_bias;
  }
}

template <bool kShort>
HWY_NOINLINE void RowsOfKind(const DenseFewCall& call, int64_t first_row, int64_t last_row) {
  int64_t row = first_row;
  for (; row + 4 <= last_row; row += 4) {
    for (int64_t t = 0; t < call.x.rows; ++t) DotRows<4, kShort>(call, row, t);
  }
  for (; row < last_row; ++row) {
    for (int64_t t = 0; t < call.x.rows; ++t) DotRows<1, kShort>(call, row, t);
  }
}

void DenseFewRows(const DenseFewCall& call, int64_t first_row, int64_t last_row) {
  if (call.w.row_stride <= kShortRow) return RowsOfKind<true>(call, first_row, last_row);
  RowsOfKind<false>(call, first_row, last_row);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(DenseFewRows);

void dense_forward_small_batch(MatrixView<const float> x, MatrixView<const float> w,
                               const float* bias, float beta, MatrixView<float> y) {
  if (x.rows == 0) return;
  // Waking the threads takes 2 us on a Zen 3 with 2 cores: 256 x 256 with one token took 6.0 us on
  // one thread and 6.1 on two, 768 x 256 took 18 and 13. So what is not more than the first is one
  // item, and stays on one thread.
  constexpr int64_t kSmall = 1 << 16, kItemWeights = 1 << 14;
  const int64_t cols = std::max<int64_t>(1, w.cols);
  const int64_t rows_per_item = w.rows <= kSmall / x.rows / cols
                                    ? std::max<int64_t>(1, w.rows)
                                    : std::max<int64_t>(4, kItemWeights / cols / 4 * 4);
  const DenseFewCall call = {x, w, bias, beta != 0.0f, y};
  parallel_for((w.rows + rows_per_item - 1) / rows_per_item, [&](int64_t item) {
    const int64_t first = item * rows_per_item;
    HWY_DYNAMIC_DISPATCH(DenseFewRows)
    (call, first, std::min(w.rows, first + rows_per_item));
  });
}

}  // namespace weft
#endif
