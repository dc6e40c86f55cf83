// Blocks of four cells and four or eight slots turn in registers. With AVX2 (AMD Zen 3), ns per
// entry of the gradient to sample and pack 2:4, 2:4x2, 1:8x2: 2.50, 2.37, 1.58 with a loop over the
// slots of every cell, 2.32, 2.04, 1.30 so.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/pack/place_slots.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "weft/pack/place_slots.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET != HWY_SCALAR
// Rows of one or two vectors of four: row r and, above it, row r + 4.
template <class D>
HWY_INLINE hn::VFromD<D> LoadRows(D d, const hn::TFromD<D>* from, int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, from);
  } else {
    const hn::Half<D> half;
    return hn::Combine(d, hn::LoadU(half, from + 4 * stride), hn::LoadU(half, from));
  }
}

template <class V>
struct FourCells {
  V of[4];  // in each as many rows as it has lanes, in order
};

// Transposes four columns of the rows at `from`.
template <class D>
HWY_INLINE FourCells<hn::VFromD<D>> Transpose(D d, const hn::TFromD<D>* from, int64_t stride) {
  const hn::RepartitionToWide<D> wide;
  const auto row0 = LoadRows(d, from, stride), row1 = LoadRows(d, from + stride, stride);
  const auto row2 = LoadRows(d, from + 2 * stride, stride);
  const auto row3 = LoadRows(d, from + 3 * stride, stride);
  const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, row0, row1));
  const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, row2, row3));
  const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, row0, row1));
  const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, row2, row3));
  return {{hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)),
           hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)),
           hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)),
           hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23))}};
}

// How many rows of `rows` were placed.
HWY_INLINE int64_t PlaceValues(const PlaceJob& job, int64_t cell, int64_t cells, int64_t rows) {
  const hn::CappedTag<float, 8> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t row = 0;
  for (; row + lanes <= rows; row += lanes) {
    const auto columns = Transpose(d, job.values + row * job.stride + cell, job.stride);
    for (int64_t k = 0; k < cells; ++k) {
      hn::StoreU(columns.of[k], d, job.to + int64_t{job.next[cell + k]} * job.share + row);
    }
  }
  return row;
}

HWY_INLINE int64_t PlaceOffsets(const PlaceJob& job, int64_t cell, int64_t cells) {
  const hn::CappedTag<int32_t, 8> d;
  const hn::Rebind<uint16_t, decltype(d)> narrow;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t slot = 0;
  for (; slot + lanes <= job.slots; slot += lanes) {
    const auto columns = Transpose(d, job.indices + slot * job.stride + cell, job.stride);
    for (int64_t k = 0; k < cells; ++k) {
      const auto offset =
          hn::Add(hn::Mul(columns.of[k], hn::Set(d, job.line)), hn::Set(d, job.base));
      hn::StoreU(hn::DemoteTo(narrow, offset), narrow, job.offsets + job.next[cell + k] + slot);
    }
  }
  return slot;
}
#else
int64_t PlaceValues(const PlaceJob&, int64_t, int64_t, int64_t) { return 0; }
int64_t PlaceOffsets(const PlaceJob&, int64_t, int64_t) { return 0; }
#endif

constexpr int64_t kLine = 16;  // floats

// 1 to 4 cells.
HWY_INLINE void PlaceCells(const PlaceJob& job, int64_t cell, int64_t cells) {
  const int64_t rows = job.slots * job.share;
  const int64_t first_row = PlaceValues(job, cell, cells, rows);
  const int64_t first_slot = PlaceOffsets(job, cell, cells);
  for (int64_t c = cell; c < cell + cells; ++c) {
    float* to = job.to + int64_t{job.next[c]} * job.share;
    uint16_t* offsets = job.offsets + job.next[c];
    for (int64_t r = first_row; r < rows; ++r) to[r] = job.values[r * job.stride + c];
    for (int64_t s = first_slot; s < job.slots; ++s) {
      offsets[s] = static_cast<uint16_t>(job.base + job.indices[s * job.stride + c] * job.line);
    }
    // Where the cell will most likely go on: 2:4 2.46 -> 2.39, 2:4x2 2.11 -> 2.03.
    hwy::Prefetch(to + rows);
    hwy::Prefetch(to + rows + kLine);
    hwy::Prefetch(offsets + job.slots + kLine);
  }
}

void PlaceSlots(const PlaceJob& job) {
  int64_t cell = 0;
  for (; cell + 4 <= job.cells; cell += 4) PlaceCells(job, cell, 4);
  if (cell < job.cells) PlaceCells(job, cell, job.cells - cell);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(PlaceSlots);

void place_slots(const PlaceJob& job) { HWY_DYNAMIC_DISPATCH(PlaceSlots)(job); }

}  // namespace weft
#endif
