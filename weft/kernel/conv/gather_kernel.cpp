// Runs the program of a stripe (gather.h): vectors outside, channels inside, so that what a vector
// needs, its lanes as masks, is in registers for all channels.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/conv/gather_kernel.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "weft/kernel/conv/gather.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Vec = hn::VFromD<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

// Lanes [first, last) from memory, 0 in the others, whose addresses may be outside of any array.
// kStride: from one lane to the next; 0: any.
template <int kStride>
class Lanes {
 public:
  HWY_INLINE Lanes(const GatherLoad& load, int64_t stride)
      : first_(load.first), last_(load.last), stride_(stride) {}
  HWY_INLINE Vec Load(const float* from) const {
    HWY_ALIGN float lanes[kLanes] = {};
    for (int i = first_; i < last_; ++i) lanes[i] = from[i * stride_];
    return hn::Load(D(), lanes);
  }

 private:
  int first_, last_;
  int64_t stride_;
};

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86  // masked loads do not touch the other lanes
HWY_INLINE hn::MFromD<D> LanesFrom(int first, int last) {
  const D d;
  return hn::AndNot(hn::FirstN(d, static_cast<size_t>(HWY_MAX(first, 0))),
                    hn::FirstN(d, static_cast<size_t>(HWY_MAX(last, 0))));
}

template <>
class Lanes<1> {
 public:
  HWY_INLINE Lanes(const GatherLoad& load, int64_t) : mask_(LanesFrom(load.first, load.last)) {}
  HWY_INLINE Vec Load(const float* from) const { return hn::MaskedLoad(mask_, D(), from); }

 private:
  hn::MFromD<D> mask_;
};

// Two loads, of which every second lane is taken.
template <>
class Lanes<2> {
 public:
  HWY_INLINE Lanes(const GatherLoad& load, int64_t)
      : low_(LanesFrom(2 * load.first, HWY_MIN(2 * load.last - 1, kLanes))),
        high_(LanesFrom(2 * load.first - kLanes, 2 * load.last - 1 - kLanes)) {}
  HWY_INLINE Vec Load(const float* from) const {
    const D d;
    return hn::ConcatEven(d, hn::MaskedLoad(high_, d, from + kLanes),
                          hn::MaskedLoad(low_, d, from));
  }

 private:
  hn::MFromD<D> low_, high_;
};
#endif

HWY_INLINE Vec Union(Vec a, Vec b) { return hn::Or(a, b); }

template <int kStride>
HWY_INLINE void RunVector(const GatherJob& job, const GatherVector& vector) {
  const D d;
  const GatherLoad* load = job.loads + vector.first;
  const float* plane = job.planes;
  float* to = job.to + vector.to;
  const auto for_each_channel = [&](auto value) HWY_ATTR {
    for (int64_t c = 0; c < job.channels; ++c) {
      hn::Store(value(), d, to);
      plane += job.plane_step;
      to += job.to_step;
    }
  };
  const bool whole = vector.count == 1 && load->first == 0 && load->last == kLanes;
  if (vector.count == 0) {
    for_each_channel([&]() HWY_ATTR { return hn::Zero(d); });
  } else if (kStride == 1 && whole) {
    for_each_channel([&]() HWY_ATTR { return hn::LoadU(d, plane + load->from); });
  } else if (vector.count == 1) {
    const Lanes<kStride> one(load[0], job.stride_w);
    for_each_channel([&]() HWY_ATTR { return one.Load(plane + load[0].from); });
  } else if (vector.count == 2) {
    const Lanes<kStride> one(load[0], job.stride_w), two(load[1], job.stride_w);
    for_each_channel([&]() HWY_ATTR {
      return Union(one.Load(plane + load[0].from), two.Load(plane + load[1].from));
    });
  } else {
    for_each_channel([&]() HWY_ATTR {
      Vec all = hn::Zero(d);
      for (int i = 0; i < vector.count; ++i) {
        all = Union(all, Lanes<kStride>(load[i], job.stride_w).Load(plane + load[i].from));
      }
      return all;
    });
  }
}

void RunGather(const GatherJob& job) {
  for (int64_t v = 0; v < job.vector_count; ++v) {
    switch (job.stride_w) {
      case 1: RunVector<1>(job, job.vectors[v]); break;
      case 2: RunVector<2>(job, job.vectors[v]); break;
      default: RunVector<0>(job, job.vectors[v]); break;
    }
  }
}

int GatherLanes() { return kLanes; }

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(RunGather);
HWY_EXPORT(GatherLanes);

int gather_lanes() { return HWY_DYNAMIC_DISPATCH(GatherLanes)(); }
void run_gather(const GatherJob& job) { HWY_DYNAMIC_DISPATCH(RunGather)(job); }

}  // namespace weft
#endif
