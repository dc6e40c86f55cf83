#include "weft/kernel/masked/masked_rows.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/masked/masked_rows.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, kPartialSums>;
using Vec = hn::VFromD<D>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kParts = static_cast<int>(kPartialSums) / kLanes;  // vectors of sums of an entry

// As in panel_kernel.cpp: or g++ may load it again for each of the multiply-adds that use it.
HWY_INLINE void KeepInRegister(Vec& v) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL  // clang 14 has no such operands
  asm("" : "+v"(v.raw));
#else
  (void)v;
#endif
}

// Or g++ makes base and index of it, which costs a micro-operation per load.
HWY_INLINE void KeepPointer(const float*& p) {
#if HWY_COMPILER_GCC_ACTUAL
  asm("" : "+r"(p));
#else
  (void)p;
#endif
}

// Each entry's sum of its partial sums: of p[i] and p[i + 8] first, which are q[i], then
// ((q[0] + q[2]) + (q[1] + q[3])) + ((q[4] + q[6]) + (q[5] + q[7])).
#if HWY_TARGET == HWY_SCALAR
template <int kEntries>
HWY_INLINE void AddUp(const Vec (&sums)[kEntries][kParts], bool first, float* HWY_RESTRICT values) {
  for (int e = 0; e < kEntries; ++e) {
    const auto at = [&](int i) { return hn::GetLane(sums[e][i]) + hn::GetLane(sums[e][i + 8]); };
    const float sum = ((at(0) + at(2)) + (at(1) + at(3))) + ((at(4) + at(6)) + (at(5) + at(7)));
    values[e] = first ? sum : values[e] + sum;
  }
}
#else
// Four entries: in each block of four lanes, the sums of that block of each of them.
template <class DV, class V = hn::VFromD<DV> >
HWY_INLINE V BlockSums(DV d, V a, V b, V c, V e) {
  const hn::RepartitionToWide<DV> d64;
  const V ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const V ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto wide_ab = hn::BitCast(d64, ab), wide_ce = hn::BitCast(d64, ce);
  return hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, wide_ab, wide_ce)),
                 hn::BitCast(d, hn::InterleaveUpper(d64, wide_ab, wide_ce)));
}

template <class DV>
HWY_INLINE void AddTo(DV d, hn::VFromD<DV> sum, bool first, float* HWY_RESTRICT values) {
  if (!first) sum = hn::Add(hn::LoadU(d, values), sum);
  hn::StoreU(sum, d, values);
}

HWY_INLINE void AddUpFour(const Vec (*sums)[kParts], bool first, float* HWY_RESTRICT values) {
  const hn::CappedTag<float, 4> d4;
#if HWY_MAX_BYTES >= 32
  const hn::CappedTag<float, 8> d8;
  const auto eight = [&](int e) HWY_ATTR {
#if HWY_MAX_BYTES >= 64
    return hn::Add(hn::LowerHalf(d8, sums[e][0]), hn::UpperHalf(d8, sums[e][0]));
#else
    return hn::Add(sums[e][0], sums[e][1]);
#endif
  };
  const auto both = BlockSums(d8, eight(0), eight(1), eight(2), eight(3));
  AddTo(d4, hn::Add(hn::LowerHalf(d4, both), hn::UpperHalf(d4, both)), first, values);
#else
  const auto part = [&](int p) HWY_ATTR {
    const auto four = [&](int e) HWY_ATTR { return hn::Add(sums[e][p], sums[e][p + 2]); };
    return BlockSums(d4, four(0), four(1), four(2), four(3));
  };
  AddTo(d4, hn::Add(part(0), part(1)), first, values);
#endif
}

template <int kEntries>
HWY_INLINE void AddUp(const Vec (&sums)[kEntries][kParts], bool first, float* HWY_RESTRICT values) {
#if HWY_MAX_BYTES >= 64
  if constexpr (kEntries == 8) {  // entry e in the lower half, entry e + 4 in the upper one
    const D d;
    const auto pair = [&](int e) HWY_ATTR {
      const Vec a = sums[e][0], b = sums[e + 4][0];
      return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
    };
    // Blocks: of 0 to 3, of 4 to 7, both twice.
    const Vec all = BlockSums(d, pair(0), pair(1), pair(2), pair(3));
    const hn::CappedTag<float, 8> d8;
    const auto lower = hn::LowerHalf(d8, all), upper = hn::UpperHalf(d8, all);
    AddTo(d8,
          hn::Add(hn::ConcatLowerLower(d8, upper, lower), hn::ConcatUpperUpper(d8, upper, lower)),
          first, values);
    return;
  }
#endif
  HWY_UNROLL(8)
  for (int e = 0; e < kEntries; e += 4) AddUpFour(sums + e, first, values + e);
}
#endif

// Adds kSteps times kPartialSums tokens to the sums of kAtOnce parts; pointers advance.
template <int kSteps, int kEntries, int kAtOnce>
HWY_INLINE void Step(const float* HWY_RESTRICT& g, const float* (&x)[kEntries],
                     Vec (&sums)[kEntries][kAtOnce]) {
  const D d;
  HWY_UNROLL(8)
  for (int s = 0; s < kSteps; ++s) {
    HWY_UNROLL(8)
    for (int p = 0; p < kAtOnce; ++p) {
      const int64_t at = s * kPartialSums + p * kLanes;
      Vec shared = hn::LoadU(d, g + at);
      KeepInRegister(shared);
      HWY_UNROLL(8)
      for (int e = 0; e < kEntries; ++e) {
        sums[e][p] = hn::MulAdd(shared, hn::Load(d, x[e] + at), sums[e][p]);
      }
    }
  }
  g += kSteps * kPartialSums;
  HWY_UNROLL(8)
  for (int e = 0; e < kEntries; ++e) {
    x[e] += kSteps * kPartialSums;
    KeepPointer(x[e]);
  }
}

// kEntries entries of one row. kAtOnce: parts whose sums are in registers together.
template <int kEntries, int kAtOnce>
HWY_INLINE void Dots(const MaskedJob& job, const float* HWY_RESTRICT row, const uint16_t* index,
                     float* HWY_RESTRICT values) {
  constexpr int kSteps = 4;
  Vec sums[kEntries][kParts];
  HWY_UNROLL(8)
  for (int part = 0; part < kParts; part += kAtOnce) {
    const float* HWY_RESTRICT g = row + part * kLanes;
    const float* x[kEntries];
    Vec part_sums[kEntries][kAtOnce];
    HWY_UNROLL(8)
    for (int e = 0; e < kEntries; ++e) {
      x[e] = job.x + index[e] * job.x_stride + part * kLanes;
      HWY_UNROLL(8)
      for (int p = 0; p < kAtOnce; ++p) part_sums[e][p] = hn::Zero(D());
    }
    const int64_t steps = job.tokens / kPartialSums;
    for (int64_t s = steps / kSteps; s > 0; --s) Step<kSteps>(g, x, part_sums);
    for (int64_t s = steps % kSteps; s > 0; --s) Step<1>(g, x, part_sums);
    HWY_UNROLL(8)
    for (int e = 0; e < kEntries; ++e) {
      HWY_UNROLL(8)
      for (int p = 0; p < kAtOnce; ++p) sums[e][part + p] = part_sums[e][p];
    }
  }
  AddUp<kEntries>(sums, job.first, values);
}

// Eight entries, one part after the other, load least. This loop alone, AVX2, 16 inputs of 256 tokens,
// 8 kept: four entries with both parts 75 GFLOP/s on a Zen 4, eight 78; on a Sapphire Rapids, which
// loads more than it multiplies, 56 to 59 and 54. With AVX-512 it had 82 there, and 85 on the Zen 4.
constexpr int kEntriesAtOnce = kLanes >= 8 ? 8 : 4;
constexpr int kPartsAtOnce = kLanes >= 8 ? 1 : 2;
// Four entries that are left over have sums too few, unless both parts are added to at once.
constexpr int kPartsOfFour = kParts >= 2 ? 2 : 1;

void RunMaskedRows(const MaskedJob& job) {
  for (int64_t r = 0; r < job.rows; ++r) {
    const float* g = job.g + r * job.g_stride;
    uint32_t at = job.starts[r];
    const uint32_t end = job.starts[r + 1];
    for (; at + kEntriesAtOnce <= end; at += kEntriesAtOnce) {
      Dots<kEntriesAtOnce, kPartsAtOnce>(job, g, job.index + at, job.values + at);
    }
    if (at < end) Dots<4, kPartsOfFour>(job, g, job.index + at, job.values + at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(RunMaskedRows);

void run_masked_rows(const MaskedJob& job) { HWY_DYNAMIC_DISPATCH(RunMaskedRows)(job); }

}  // namespace weft
#endif
