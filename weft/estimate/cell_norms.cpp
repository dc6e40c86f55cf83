// In double, where no square of a float over- or underflows. Four cells at a time where groups
// allow it, else one: both do the same operations in the same order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/estimate/cell_norms.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "weft/estimate/sample_columns.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A cell that is not zero must not become so: it would never be kept.
constexpr double kLeast = std::numeric_limits<float>::denorm_min();

// DemoteTo alone would clamp infinity to the largest float where there are no vectors.
template <class DD>
HWY_INLINE auto Root(DD dd, hn::VFromD<DD> sum, hn::VFromD<DD> inverse) {
  auto root = hn::Sqrt(hn::Mul(sum, inverse));
  const auto some = hn::Gt(sum, hn::Zero(dd));
  root = hn::IfThenElse(some, hn::Max(root, hn::Set(dd, kLeast)), root);
  const hn::Rebind<float, DD> df;
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(df, static_cast<float>(hn::GetLane(root)));
#else
  return hn::DemoteTo(df, root);
#endif
}

float NormOf(const float* first, int64_t stride, int64_t members) {
  double sum = 0;
  for (int64_t m = 0; m < members; ++m) sum += double{first[m * stride]} * first[m * stride];
  const double root = std::sqrt(sum * (1.0 / static_cast<double>(members)));
  return static_cast<float>(sum > 0 ? std::max(root, kLeast) : root);
}

// A whole block: members are `group` floats apart, and all there.
HWY_INLINE void NormsOfBlock(const float* from, int64_t group, int64_t share, float* to) {
  const hn::CappedTag<double, 4> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(dd));
  const auto inverse = hn::Set(dd, 1.0 / static_cast<double>(share));
  for (int64_t c = 0; c < group; c += lanes) {
    auto sum = hn::Zero(dd);
    for (int64_t m = 0; m < share; ++m) {
      const auto value = hn::PromoteTo(dd, hn::LoadU(df, from + m * group + c));
      sum = hn::Add(sum, hn::Mul(value, value));
    }
    hn::StoreU(Root(dd, sum, inverse), df, to + c);
  }
}

void CellNorms(MatrixView<const float> g, const Pattern& pattern, MatrixView<float> norms) {
  const int64_t group = pattern.group(), block = pattern.block();
  const bool side_by_side =
      group % static_cast<int64_t>(hn::Lanes(hn::CappedTag<double, 4>())) == 0;
  for (int64_t t = 0; t < g.rows; ++t) {
    const float* from = g.row(t);
    float* to = norms.row(t);
    for (int64_t first = 0; first < g.cols; first += block, to += group) {
      if (side_by_side && first + block <= g.cols) {
        NormsOfBlock(from + first, group, pattern.share(), to);
        continue;
      }
      const int64_t end = std::min(first + block, g.cols);
      for (int64_t c = 0; c < std::min(group, end - first); ++c) {
        to[c] = NormOf(from + first + c, group, (end - first - c + group - 1) / group);
      }
    }
  }
}

void PlaneNorms(const MemberPlanes& planes, int64_t tokens, float* norms) {
  const hn::CappedTag<double, 8> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(dd));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t c = t * planes.stride; c < (t + 1) * planes.stride; c += lanes) {
      auto sum = hn::Zero(dd);
      for (int64_t m = 0; m < planes.share; ++m) {
        const auto value = hn::PromoteTo(dd, hn::Load(df, planes.data + m * planes.size + c));
        sum = hn::Add(sum, hn::Mul(value, value));
      }
      const auto inverse = hn::Load(dd, planes.inverses + c - t * planes.stride);
      hn::Store(Root(dd, sum, inverse), df, norms + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(CellNorms);
HWY_EXPORT(PlaneNorms);

void cell_norms(MatrixView<const float> g, const Pattern& pattern, MatrixView<float> norms) {
  HWY_DYNAMIC_DISPATCH(CellNorms)(g, pattern, norms);
}
void plane_norms(const MemberPlanes& planes, int64_t tokens, float* norms) {
  HWY_DYNAMIC_DISPATCH(PlaneNorms)(planes, tokens, norms);
}

}  // namespace weft
#endif
