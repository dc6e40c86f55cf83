#include "bench/peak.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "bench/peak.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace weft::bench {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Runs `steps` steps and returns their flops. Twelve sums: two units of latency four or five need
// at least ten, and with both factors they still fit the 16 registers of AVX2.
double MultiplyAdds(int64_t steps, float* HWY_RESTRICT sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, *sink), b = hn::Set(d, 1e-9f);
  auto s0 = hn::Iota(d, 0), s1 = hn::Iota(d, 1), s2 = hn::Iota(d, 2), s3 = hn::Iota(d, 3);
  auto s4 = hn::Iota(d, 4), s5 = hn::Iota(d, 5), s6 = hn::Iota(d, 6), s7 = hn::Iota(d, 7);
  auto s8 = hn::Iota(d, 8), s9 = hn::Iota(d, 9), s10 = hn::Iota(d, 10), s11 = hn::Iota(d, 11);
  for (int64_t i = 0; i < steps; ++i) {
    s0 = hn::MulAdd(s0, a, b);
    s1 = hn::MulAdd(s1, a, b);
    s2 = hn::MulAdd(s2, a, b);
    s3 = hn::MulAdd(s3, a, b);
    s4 = hn::MulAdd(s4, a, b);
    s5 = hn::MulAdd(s5, a, b);
    s6 = hn::MulAdd(s6, a, b);
    s7 = hn::MulAdd(s7, a, b);
    s8 = hn::MulAdd(s8, a, b);
    s9 = hn::MulAdd(s9, a, b);
    s10 = hn::MulAdd(s10, a, b);
    s11 = hn::MulAdd(s11, a, b);
  }
  const auto sum = hn::Add(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)),
                           hn::Add(hn::Add(hn::Add(s4, s5), hn::Add(s6, s7)),
                                   hn::Add(hn::Add(s8, s9), hn::Add(s10, s11))));
  *sink = hn::GetLane(hn::SumOfLanes(d, sum));
  return static_cast<double>(steps) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace weft::bench
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <algorithm>
#include <atomic>
#include <chrono>

#include "weft/core/parallel.h"
#include "weft/kernel/tile/tile_ops.h"

namespace weft::bench {

HWY_EXPORT(MultiplyAdds);

namespace {

// The best of several runs of `work`, which returns the flops of an item.
template <typename Work>
double best_gflops(int threads, Work work) {
  constexpr int kRuns = 5;
  constexpr int64_t kItems = 32;  // per thread, so that they end together
  const int before = weft::threads();
  set_threads(threads);
  double best = 0;
  for (int run = 0; run < kRuns; ++run) {
    std::atomic<double> flops{0};
    const auto begun = std::chrono::steady_clock::now();
    parallel_for(threads * kItems, [&](int64_t) { flops += work(); });
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    best = std::max(best, flops.load() / took.count() * 1e-9);
  }
  set_threads(before);
  return best;
}

}  // namespace

double fma_peak_gflops(int threads) {
  constexpr int64_t kSteps = 80'000;  // about 0.2 ms
  return best_gflops(threads, [] {
    float factor = 0.999999f;  // the sums stay normal numbers: subnormal ones would be slow
    return HWY_DYNAMIC_DISPATCH(MultiplyAdds)(kSteps, &factor);
  });
}

double tile_peak_gflops(int threads) {
  const TileUnit unit = tile_unit();
  const TileOps& ops = tile_ops(unit);
  const int64_t steps = unit == TileUnit::kEmulated ? 10 : 5'000;  // a fraction of a millisecond
  return best_gflops(threads, [&] {
    const TileSession session(ops);
    return ops.busy(steps);
  });
}

}  // namespace weft::bench
#endif  // HWY_ONCE
