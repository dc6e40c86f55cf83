// One step of the loop is a broadcast of a value and V multiply-adds, whose operand comes from L1:
//
//   accumulator[v] += value * B[offset + v]        v < V vectors of a row of B
//
// Two bounds, here for AMD Zen 3: a multiply-add can begin when the one before it in its chain is
// done, four cycles later, so at two a cycle eight chains must be in flight; and there are two
// loads of vectors a cycle. Other CPUs of these years are not far from that.
//
// With R rows that share a pattern each vector of B is loaded once for R multiply-adds, and R * V
// are in flight. Without sharing every multiply-add has its own load; broadcasts and offsets come
// on top of them. So two rows go side by side (2 * V chains), and take their offsets, and where it
// pays their values, four at a time.
//
// What was tried stands in docs/kernels.md.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/panel/panel_kernel.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <cstring>

#include "weft/core/bf16.h"
#include "weft/kernel/panel/panel_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Vec = hn::VFromD<D>;

// Vectors per row of C that stay in registers, by the number of rows that share: the accumulators,
// R values and one vector of B. Rows that do not share go two by two.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM  // 32 registers
constexpr int MostVectors(int rows) { return rows <= 2 ? 12 : 6; }
#else  // 16 registers
constexpr int MostVectors(int rows) { return rows <= 2 ? 6 : 2; }
#endif

HWY_INLINE Vec Broadcast(const float* value) { return hn::Set(D(), *value); }
HWY_INLINE Vec Broadcast(const uint16_t* value) { return hn::Set(D(), bf16_to_float(*value)); }

// Without it g++ folds the load into each of the multiply-adds that use it, and sharing buys
// nothing.
HWY_INLINE void KeepInRegister(Vec& v) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC_ACTUAL  // clang 14 has no such operands
  asm("" : "+v"(v.raw));
#else
  (void)v;
#endif
}

template <int V>
HWY_INLINE void LoadSums(const float* HWY_RESTRICT c, bool first, Vec (&sums)[V]) {
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    sums[v] = first ? hn::Zero(D()) : hn::Load(D(), c + v * hn::MaxLanes(D()));
  }
}

template <int V>
HWY_INLINE void StoreSums(const Vec (&sums)[V], float* HWY_RESTRICT c) {
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) hn::Store(sums[v], D(), c + v * hn::MaxLanes(D()));
}

// A line's address is computed once. g++ would add the offset in each multiply-add instead, which
// Intel's CPUs then split in two: with AVX-512 on a Skylake the loop ran at 54 % of the peak, and so
// at 60 %. Not tried with AVX2.
HWY_INLINE const float* LineAt(const float* HWY_RESTRICT b, size_t offset) {
  const auto* line = reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(b) + offset);
#if HWY_TARGET <= HWY_AVX3 && HWY_COMPILER_GCC_ACTUAL
  asm("" : "+r"(line));
#endif
  return line;
}

template <int V>
HWY_INLINE void AddLine(Vec value, const float* HWY_RESTRICT line, Vec (&sums)[V]) {
  HWY_UNROLL(16)
  for (int v = 0; v < V; ++v) {
    sums[v] = hn::MulAdd(value, hn::Load(D(), line + v * hn::MaxLanes(D())), sums[v]);
  }
}

// Four values in a row, each to be had as a vector.
template <typename T>
class FourValues {
 public:
  HWY_INLINE explicit FourValues(const T* values) : values_(values) {}
  template <int K>
  HWY_INLINE Vec Get() const {
    return Broadcast(values_ + K);
  }

 private:
  const T* values_;
};

// One load and four permutations instead of four loads, which bound the loop. AMD Zen 4, AVX-512, one
// thread, 2048 x 768 x 3072, dense time / sparse time with loads and with permutations, nine rounds:
// 2:4 fwd 1.52 and 1.55, bwd_x 1.49 and 1.53, bwd_w 1.54 and 1.55; 1:4 2.71 and 2.79, 2.65 and 2.71,
// 2.80 and 2.81. On Intel's CPUs permutations take turns with multiply-adds: by the number of ports
// a tie with 10 vectors per row (not measured).
#if HWY_TARGET != HWY_SCALAR
template <>
class FourValues<float> {
 public:
  HWY_INLINE explicit FourValues(const float* values) : four_(hn::LoadDup128(D(), values)) {
    KeepInRegister(four_);
  }
  template <int K>
  HWY_INLINE Vec Get() const {
    return hn::Broadcast<K>(four_);
  }

 private:
  Vec four_;
};
#endif

// Four offsets in a row, with one load.
class FourOffsets {
 public:
  HWY_INLINE explicit FourOffsets(const uint16_t* offsets) {
    std::memcpy(&word_, offsets, sizeof(word_));
  }
  template <int K>
  HWY_INLINE size_t Get() const {
    return static_cast<uint16_t>(word_ >> (16 * K));
  }

 private:
  uint64_t word_;
};

// The entries in a panel of one row, or of a cell of rows that share; Add is for one row.
template <typename T>
struct Entries {
  const uint16_t* HWY_RESTRICT offsets;
  const T* HWY_RESTRICT values;
  size_t count;

  template <int V>
  HWY_INLINE void Add(size_t first, const float* HWY_RESTRICT b, Vec (&sums)[V]) const {
    for (size_t i = first; i < count; ++i) {
      AddLine(Broadcast(values + i), LineAt(b, offsets[i]), sums);
    }
  }
};

// Two rows side by side: as long as both have entries, four of each.
template <int V, typename T>
HWY_INLINE void MultiplyPair(const Entries<T>& upper, const Entries<T>& lower,
                             const float* HWY_RESTRICT b, float* HWY_RESTRICT c, size_t c_stride,
                             bool first) {
  Vec sums0[V], sums1[V];
  LoadSums(c, first, sums0);
  LoadSums(c + c_stride, first, sums1);
  const size_t both = HWY_MIN(upper.count, lower.count) / 4 * 4;
  for (size_t i = 0; i < both; i += 4) {
    const FourOffsets at0(upper.offsets + i), at1(lower.offsets + i);
    const FourValues<T> four0(upper.values + i), four1(lower.values + i);
    AddLine(four0.template Get<0>(), LineAt(b, at0.Get<0>()), sums0);
    AddLine(four1.template Get<0>(), LineAt(b, at1.Get<0>()), sums1);
    AddLine(four0.template Get<1>(), LineAt(b, at0.Get<1>()), sums0);
    AddLine(four1.template Get<1>(), LineAt(b, at1.Get<1>()), sums1);
    AddLine(four0.template Get<2>(), LineAt(b, at0.Get<2>()), sums0);
    AddLine(four1.template Get<2>(), LineAt(b, at1.Get<2>()), sums1);
    AddLine(four0.template Get<3>(), LineAt(b, at0.Get<3>()), sums0);
    AddLine(four1.template Get<3>(), LineAt(b, at1.Get<3>()), sums1);
  }
  upper.Add(both, b, sums0);
  lower.Add(both, b, sums1);
  StoreSums(sums0, c);
  StoreSums(sums1, c + c_stride);
}

HWY_INLINE void FetchSome(Prefetch* prefetch) {
  if (prefetch == nullptr) return;
  for (int64_t i = prefetch->per_pair; i > 0 && prefetch->next < prefetch->end; --i) {
    __builtin_prefetch(*prefetch->next++, /*for reading*/ 0, /*into L2*/ 2);
  }
}

// Rows that share nothing.
template <int V, typename T>
HWY_NOINLINE void MultiplyRows(const PanelView& a, const PanelJob& job, int first_column) {
  const uint32_t* start = a.starts + job.panel * a.cells + job.first_cell;
  const uint32_t* const last = a.starts + job.panel * a.cells + job.last_cell;
  const auto stride = static_cast<size_t>(a.tile.width);
  const float* b = job.b + first_column;
  float* c = job.c + first_column;
  const bool first = job.first;
  // Rows follow each other in the pack.
  Entries<T> next = {a.offsets + *start, static_cast<const T*>(a.values) + *start, 0};
  const auto take = [&](size_t count) HWY_ATTR {
    const Entries<T> row = {next.offsets, next.values, count};
    next.offsets += count;
    next.values += count;
    return row;
  };
  for (; last - start >= 2; start += 2, c += 2 * stride) {
    FetchSome(job.prefetch);
    const Entries<T> upper = take(start[1] - start[0]);
    MultiplyPair<V>(upper, take(start[2] - start[1]), b, c, stride, first);
  }
  if (start == last) return;
  Vec sums[V];
  LoadSums(c, first, sums);
  take(start[1] - start[0]).Add(0, b, sums);
  StoreSums(sums, c);
}

// R rows that share a pattern; values: [count, share], c: R rows, c_stride apart.
template <int R, int V, typename T>
HWY_INLINE void MultiplySharing(const Entries<T>& entries, size_t share,
                                const float* HWY_RESTRICT b, float* HWY_RESTRICT c, size_t c_stride,
                                bool first) {
  constexpr size_t kLanes = hn::MaxLanes(D());
  Vec sums[R][V];
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) LoadSums(c + r * c_stride, first, sums[r]);
  for (size_t i = 0; i < entries.count; ++i) {
    const float* line = LineAt(b, entries.offsets[i]);
    Vec value[R];
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) value[r] = Broadcast(entries.values + i * share + r);
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      Vec x = hn::Load(D(), line + v * kLanes);
      KeepInRegister(x);
      HWY_UNROLL(16)
      for (int r = 0; r < R; ++r) sums[r][v] = hn::MulAdd(value[r], x, sums[r][v]);
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) StoreSums(sums[r], c + r * c_stride);
}

// Cells of rows that share: R of them at a time.
template <int R, int V, typename T>
HWY_NOINLINE void MultiplyCells(const PanelView& a, const PanelJob& job, int first_column) {
  const uint32_t* start = a.starts + job.panel * a.cells + job.first_cell;
  const uint32_t* const last = a.starts + job.panel * a.cells + job.last_cell;
  const auto share = static_cast<size_t>(a.share);
  const auto row = static_cast<size_t>(a.tile.width);
  const size_t c_stride = row * static_cast<size_t>(a.row_stride);
  const float* b = job.b + first_column;
  float* c = job.c + first_column;
  const bool first = job.first;

  // Pointers run along with the cells, which follow each other in the pack: with few entries per
  // cell, anything else would take as long as the products.
  const auto* values = static_cast<const T*>(a.values) + *start * share;
  const uint16_t* offsets = a.offsets + *start;
  int64_t left_in_block = a.row_stride;
  for (; start < last; ++start) {
    const size_t count = start[1] - start[0];
    for (size_t r = 0; r < share; r += R) {
      MultiplySharing<R, V, T>({offsets, values + r, count}, share, b, c + r * c_stride, c_stride,
                               first);
    }
    values += count * share;
    offsets += count;
    c += row;
    if (--left_in_block == 0) {  // the rows of the other members are in between
      left_in_block = a.row_stride;
      c += (share - 1) * c_stride;
    }
  }
}

// Calls the loop for `vectors` <= V vectors.
template <int R, int V, typename T>
HWY_INLINE void WithVectors(int vectors, const PanelView& a, const PanelJob& job,
                            int first_column) {
  if constexpr (V > 1) {
    if (vectors < V) return WithVectors<R, V - 1, T>(vectors, a, job, first_column);
  }
  if constexpr (R == 1) {
    MultiplyRows<V, T>(a, job, first_column);
  } else {
    MultiplyCells<R, V, T>(a, job, first_column);
  }
}

// All columns, in as few and as equal parts as the registers allow.
template <int R, typename T>
HWY_INLINE void MultiplyColumns(const PanelView& a, const PanelJob& job) {
  constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
  int left = job.width / kLanes;
  int column = 0;
  for (int parts = (left + MostVectors(R) - 1) / MostVectors(R); parts > 0; --parts) {
    const int vectors = (left + parts - 1) / parts;
    WithVectors<R, MostVectors(R), T>(vectors, a, job, column);
    column += vectors * kLanes;
    left -= vectors;
  }
}

template <typename T>
HWY_INLINE void MultiplyShared(const PanelView& a, const PanelJob& job) {
  if (a.share == 1) return MultiplyColumns<1, T>(a, job);
  if (a.share == 2) return MultiplyColumns<2, T>(a, job);
  return MultiplyColumns<4, T>(a, job);
}

void MultiplyPanel(const PanelView& a, const PanelJob& job) {
  if (a.value_type == Precision::kFp32) return MultiplyShared<float>(a, job);
  return MultiplyShared<uint16_t>(a, job);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(MultiplyPanel);

void multiply_panel(const PanelView& a, const PanelJob& job) {
  HWY_DYNAMIC_DISPATCH(MultiplyPanel)(a, job);
}

}  // namespace weft
#endif
