#include "weft/kernel/attention/softmax_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/attention/softmax_rows.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>  // after both

#include <algorithm>
#include <limits>

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kSoftmaxPad>;
using Vec = hn::VFromD<D>;
using Lanes = hn::Mask<D>;

// Highway's own is 0 at NaN.
HWY_INLINE Vec Exp(Vec x) { return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(D(), x)); }

// Calls body(first element, lanes in use) for `count` elements, and returns how many lanes that
// were. Lanes that are not in use are the pad, or columns that are masked.
template <typename Body>
HWY_INLINE int64_t ForEachVector(int64_t count, const Body& body) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i < count; i += lanes) {
    body(i, hn::FirstN(d, static_cast<size_t>(std::min(lanes, count - i))));
  }
  return i;
}

HWY_INLINE float Largest(const float* HWY_RESTRICT row, int64_t count) {
  const D d;
  const Vec least = hn::Set(d, -std::numeric_limits<float>::infinity());
  Vec max = least;
  ForEachVector(count, [&](int64_t i, Lanes used) HWY_ATTR {
    max = hn::Max(max, hn::IfThenElse(used, hn::LoadU(d, row + i), least));
  });
  return hn::GetLane(hn::MaxOfLanes(d, max));
}

void ForwardRows(MatrixView<float> scores, Counts counts, RowStats<float> stats) {
  const D d;
  for (int64_t r = 0; r < scores.rows; ++r) {
    float* HWY_RESTRICT row = scores.row(r);
    const int64_t count = std::min(counts.first + r * counts.step, scores.cols);
    const float max = Largest(row, count);
    Vec sum = hn::Zero(d);
    const int64_t end = ForEachVector(count, [&](int64_t i, Lanes used) HWY_ATTR {
      const Vec shifted = hn::Sub(hn::LoadU(d, row + i), hn::Set(d, max));
      const Vec e = hn::IfThenElseZero(used, Exp(shifted));
      sum = hn::Add(sum, e);
      hn::StoreU(e, d, row + i);
    });
    stats.max[r] = max;
    stats.inverse_sum[r] = 1 / hn::GetLane(hn::SumOfLanes(d, sum));
    for (int64_t i = end; i < scores.cols; ++i) row[i] = 0;
  }
}

void BackwardRows(MatrixView<float> scores, MatrixView<float> gradients, Counts counts,
                  RowStats<const float> stats) {
  const D d;
  for (int64_t r = 0; r < scores.rows; ++r) {
    float* HWY_RESTRICT row = scores.row(r);
    float* HWY_RESTRICT gradient = gradients.row(r);
    const int64_t count = std::min(counts.first + r * counts.step, scores.cols);
    const Vec max = hn::Set(d, stats.max[r]), scale = hn::Set(d, stats.inverse_sum[r]);
    Vec sum = hn::Zero(d);
    const int64_t end = ForEachVector(count, [&](int64_t i, Lanes used) HWY_ATTR {
      const Vec e = Exp(hn::Sub(hn::LoadU(d, row + i), max));
      const Vec p = hn::IfThenElseZero(used, hn::Mul(e, scale));
      const Vec dp = hn::IfThenElseZero(used, hn::LoadU(d, gradient + i));
      sum = hn::MulAdd(p, dp, sum);
      hn::StoreU(p, d, row + i);
    });
    const Vec mean = hn::SumOfLanes(d, sum);
    ForEachVector(count, [&](int64_t i, Lanes used) HWY_ATTR {
      const Vec p = hn::LoadU(d, row + i), dp = hn::LoadU(d, gradient + i);
      hn::StoreU(hn::IfThenElseZero(used, hn::Mul(p, hn::Sub(dp, mean))), d, gradient + i);
    });
    for (int64_t i = end; i < scores.cols; ++i) row[i] = gradient[i] = 0;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(ForwardRows);
HWY_EXPORT(BackwardRows);

void softmax_rows_forward(MatrixView<float> scores, Counts counts, RowStats<float> stats) {
  HWY_DYNAMIC_DISPATCH(ForwardRows)(scores, counts, stats);
}

void softmax_rows_backward(MatrixView<float> scores, MatrixView<float> gradients, Counts counts,
                           RowStats<const float> stats) {
  HWY_DYNAMIC_DISPATCH(BackwardRows)(scores, gradients, counts, stats);
}

}  // namespace weft
#endif
