#include "weft/kernel/conv/plane_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/conv/plane_rows.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
constexpr int64_t kLanes = static_cast<int64_t>(hn::MaxLanes(D()));

HWY_INLINE bool OnLine(const float* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

void PutPlaneRows(const PlaneRows& block) {
  const D d;
  const bool whole_lines = block.past_caches && block.count % 16 == 0;
  for (int64_t r = 0; r < block.rows; ++r) {
    const float* HWY_RESTRICT from = block.from + r * block.from_step;
    float* HWY_RESTRICT to = block.to + r * block.to_step;
    const float bias = block.bias ? block.bias[r] : 0.0f;
    const auto value = [&](int64_t i) HWY_ATTR {
      const auto sum = hn::LoadU(d, from + i);
      return block.bias ? hn::Add(sum, hn::Set(d, bias)) : sum;
    };
    int64_t i = 0;
    if (whole_lines && OnLine(to)) {
      for (; i < block.count; i += kLanes) hn::Stream(value(i), d, to + i);
    }
    for (; i + kLanes <= block.count; i += kLanes) hn::StoreU(value(i), d, to + i);
    for (; i < block.count; ++i) to[i] = block.bias ? from[i] + bias : from[i];
  }
  if (whole_lines) hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(PutPlaneRows);

void put_plane_rows(const PlaneRows& block) { HWY_DYNAMIC_DISPATCH(PutPlaneRows)(block); }

}  // namespace weft
#endif
