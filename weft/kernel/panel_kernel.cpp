// One step of the loop is a broadcast of a value and V multiply-adds, whose operand comes from L1:
//
//   accumulator[v] += value * B[offset + v]        v < V vectors of a row of B
//
// With R rows that share a pattern each vector of B is loaded once for R multiply-adds. The number
// of multiply-adds in flight must cover their latency: R * V >= 8. Without sharing, loads are the
// bound: V + 1 of them, and the offset, for V multiply-adds.
//
// What was tried (AMD Zen 3, AVX2, one core, panel in L1, peak 104 GFLOP/s): R = 1 gives 61, 77,
// 80, 81 GFLOP/s at V = 4, 6, 8, 12; R = 2 gives 102 at V = 4 and 98 at V = 6; R = 4 gives 103 at V
// = 2 and 48 at V = 3, which spills. Taking four offsets with one load and broadcasting from a
// register gave 84 at V = 8 and less at every other V, and prefetching the pack or C was never
// better than leaving it to the CPU, so the loop stays as simple as it is.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/kernel/panel_kernel.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>

#include "weft/core/bf16.h"
#include "weft/kernel/panel_kernel.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using Vec = hn::VFromD<D>;

// Vectors per row of C that stay in registers, by the number of rows: the accumulators, R values
// and one vector of B.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM  // 32 registers
constexpr int MostVectors(int rows) { return rows == 1 ? 16 : rows == 2 ? 12 : 6; }
#else  // 16 registers
constexpr int MostVectors(int rows) { return rows == 1 ? 8 : rows == 2 ? 6 : 2; }
#endif

HWY_INLINE Vec Broadcast(const float* value) { return hn::Set(D(), *value); }
HWY_INLINE Vec Broadcast(const uint16_t* value) { return hn::Set(D(), bf16_to_float(*value)); }

// Without it g++ folds the load into each of the multiply-adds that use it, and sharing buys
// nothing.
HWY_INLINE void KeepInRegister(Vec& v) {
#if HWY_ARCH_X86 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  asm("" : "+v"(v.raw));
#else
  (void)v;
#endif
}

struct Cell {
  const uint16_t* HWY_RESTRICT offsets;
  size_t count;
  size_t share;
};

// R rows of a cell times V vectors of the panel. values: [count, share], c: R rows, c_stride apart.
template <int R, int V, typename T>
HWY_INLINE void MultiplyCell(const Cell& cell, const T* HWY_RESTRICT values,
                             const float* HWY_RESTRICT b, float* HWY_RESTRICT c, size_t c_stride,
                             bool first) {
  const D d;
  constexpr size_t kLanes = hn::MaxLanes(D());
  Vec sums[R][V];
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      sums[r][v] = first ? hn::Zero(d) : hn::Load(d, c + r * c_stride + v * kLanes);
    }
  }
  for (size_t i = 0; i < cell.count; ++i) {
    const auto* line =
        reinterpret_cast<const float*>(reinterpret_cast<const uint8_t*>(b) + cell.offsets[i]);
    Vec value[R];
    HWY_UNROLL(16)
    for (int r = 0; r < R; ++r) value[r] = Broadcast(values + i * cell.share + r);
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) {
      Vec x = hn::Load(d, line + v * kLanes);
      if constexpr (R > 1) KeepInRegister(x);
      HWY_UNROLL(16)
      for (int r = 0; r < R; ++r) sums[r][v] = hn::MulAdd(value[r], x, sums[r][v]);
    }
  }
  HWY_UNROLL(16)
  for (int r = 0; r < R; ++r) {
    HWY_UNROLL(16)
    for (int v = 0; v < V; ++v) hn::Store(sums[r][v], d, c + r * c_stride + v * kLanes);
  }
}

// Pointers run along with the cells, which follow each other in the pack: with few entries per
// cell, anything else would take as long as the products.
template <int R, int V, typename T>
HWY_NOINLINE void MultiplyCells(const PanelView& a, const PanelJob& job, int first_column) {
  const uint32_t* start = a.starts + job.panel * a.cells + job.first_cell;
  const uint32_t* const last = a.starts + job.panel * a.cells + job.last_cell;
  const auto share = static_cast<size_t>(a.share);
  const auto row = static_cast<size_t>(a.tile.width);
  const size_t c_stride = row * static_cast<size_t>(a.row_stride);
  const auto* values = static_cast<const T*>(a.values) + *start * share;
  const uint16_t* offsets = a.offsets + *start;
  const float* b = job.b + first_column;
  float* c = job.c + first_column;
  const bool first = job.first;

  int64_t left_in_block = a.row_stride;
  for (; start < last; ++start) {
    const Cell cell = {offsets, start[1] - start[0], share};
    for (size_t r = 0; r < share; r += R) {
      MultiplyCell<R, V>(cell, values + r, b, c + r * c_stride, c_stride, first);
    }
    values += cell.count * share;
    offsets += cell.count;
    c += row;
    if (R > 1 && --left_in_block == 0) {  // the rows of the other members lie in between
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
  MultiplyCells<R, V, T>(a, job, first_column);
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
  if (a.value_type == ValueType::kF32) return MultiplyShared<float>(a, job);
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
