// Eight columns at a time (four where vectors are shorter) are moved together in a register and
// stored whole; the next ones overwrite what was too much. AVX2 (AMD Zen 3), ns per weight in L1,
// one by one and so: 2:4 0.62 and 0.22, 1:8 0.17 and 0.24, 1:16 0.09 and 0.24.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/pack/keep_row.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>

#include "weft/pack/keep_row.h"

#ifndef WEFT_PACK_KEEP_ROW_PLACES
#define WEFT_PACK_KEEP_ROW_PLACES
namespace weft {

using EightPlaces = std::array<uint8_t, 8>;

// Of every byte, the places of its bits, from the lowest on.
constexpr std::array<EightPlaces, 256> places_of_bits() {
  std::array<EightPlaces, 256> places{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    size_t count = 0;
    for (uint8_t bit = 0; bit < 8; ++bit) {
      if ((byte >> bit & 1) != 0) places[byte][count++] = bit;
    }
  }
  return places;
}
inline constexpr std::array<EightPlaces, 256> kPlacesOfBits = places_of_bits();

// Whether so many of a word of `width` columns are kept that moving them together is faster than
// one by one: 12 of 64.
constexpr bool many(int kept, int width) { return kept * 64 >= 12 * width; }

}  // namespace weft
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 8>;
constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));

#if HWY_TARGET != HWY_SCALAR
using Vec = hn::VFromD<D>;

HWY_INLINE void StoreEntries(const Vec (&rows)[1], float* to) { hn::StoreU(rows[0], D(), to); }
HWY_INLINE void StoreEntries(const Vec (&rows)[2], float* to) {
  const D d;
  const Vec low = hn::InterleaveLower(d, rows[0], rows[1]);
  const Vec high = hn::InterleaveUpper(d, rows[0], rows[1]);
  if constexpr (kLanes == 4) {
    hn::StoreU(low, d, to);
    hn::StoreU(high, d, to + kLanes);
  } else {  // interleaving is done in blocks of four
    hn::StoreU(hn::ConcatLowerLower(d, high, low), d, to);
    hn::StoreU(hn::ConcatUpperUpper(d, high, low), d, to + kLanes);
  }
}
#endif

template <int kRows, bool kOffsets>
class Keeper {
 public:
  Keeper(const float* const (&rows)[kRows], float* values, const KeepRow& keep)
      : rows_(rows),
        value_(values),
        offset_(keep.offsets),
        step_(static_cast<uint16_t>(keep.step)) {}

  // The columns from k on that bits has, one by one.
  HWY_INLINE void TakeEach(int64_t k, uint64_t bits) {
    for (; bits != 0; bits &= bits - 1) {
      const int64_t at = k + std::countr_zero(bits);
      for (int r = 0; r < kRows; ++r) *value_++ = rows_[r][at];
      if constexpr (kOffsets) *offset_++ = OffsetOf(at);
    }
  }

#if HWY_TARGET != HWY_SCALAR
  // `width` columns, a multiple of kLanes, kLanes at a time; up to kLanes entries past the last are
  // overwritten.
  HWY_INLINE void TakeTogether(int64_t k, uint64_t bits, int width) {
    const hn::Rebind<uint8_t, D> d8;
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<int32_t, D> d32;
    auto base = hn::Set(d16, OffsetOf(k));
    HWY_UNROLL(16)
    for (int i = 0; i < width; i += kLanes) {
      const uint64_t some = bits >> i & ((uint64_t{1} << kLanes) - 1);
      const auto kept = std::popcount(some);
      const auto places = hn::LoadU(d8, kPlacesOfBits[some].data());
      const auto indices = hn::IndicesFromVec(D(), hn::PromoteTo(d32, places));
      Vec together[kRows];
      for (int r = 0; r < kRows; ++r) {
        together[r] = hn::TableLookupLanes(hn::LoadU(D(), rows_[r] + k + i), indices);
      }
      StoreEntries(together, value_);
      value_ += kRows * kept;
      if constexpr (kOffsets) {
        const auto steps = hn::Mul(hn::PromoteTo(d16, places), hn::Set(d16, step_));
        hn::StoreU(hn::Add(base, steps), d16, offset_);
        base = hn::Add(base, hn::Set(d16, OffsetOf(kLanes)));
        offset_ += kept;
      }
    }
  }
#endif

 private:
  HWY_INLINE uint16_t OffsetOf(int64_t k) const { return static_cast<uint16_t>(k * step_); }

  const float* const (&rows_)[kRows];
  float* value_;
  uint16_t* offset_;
  uint16_t step_;
};

template <int kRows, bool kOffsets>
HWY_INLINE void Keep(const KeepRow& keep, const float* const (&rows)[kRows], float* values) {
  Keeper<kRows, kOffsets> keeper(rows, values, keep);
  [[maybe_unused]] int64_t room = keep.room;
  for (int64_t k = 0; k < keep.count; k += 64) {
    const auto width = static_cast<int>(std::min<int64_t>(64, keep.count - k));
    const uint64_t bits = keep.mask.bits(keep.row, keep.begin + k, width);
#if HWY_TARGET != HWY_SCALAR
    const auto kept = std::popcount(bits);
    const int whole = many(kept, width) && kept + kLanes <= room ? width / kLanes * kLanes : 0;
    if (whole == 64) {
      keeper.TakeTogether(k, bits, 64);
    } else if (whole > 0) {
      keeper.TakeTogether(k, bits, whole);
    }
    if (whole < width) keeper.TakeEach(k + whole, bits >> whole);
    room -= kept;
#else
    keeper.TakeEach(k, bits);
#endif
  }
}

void KeepOneRow(const KeepRow& keep, const float* from, float* values) {
  const float* const rows[] = {from};
  keep.offsets == nullptr ? Keep<1, false>(keep, rows, values) : Keep<1, true>(keep, rows, values);
}
void KeepTwoRows(const KeepRow& keep, const float* first, const float* second, float* values) {
  const float* const rows[] = {first, second};
  keep.offsets == nullptr ? Keep<2, false>(keep, rows, values) : Keep<2, true>(keep, rows, values);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(KeepOneRow);
HWY_EXPORT(KeepTwoRows);

void keep_row(const KeepRow& keep, const float* from, float* values) {
  HWY_DYNAMIC_DISPATCH(KeepOneRow)(keep, from, values);
}
void keep_two_rows(const KeepRow& keep, const float* first, const float* second, float* values) {
  HWY_DYNAMIC_DISPATCH(KeepTwoRows)(keep, first, second, values);
}

}  // namespace weft
#endif
