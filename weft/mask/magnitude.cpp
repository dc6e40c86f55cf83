// magnitude: the `keep` largest |w| of every group along inputs.
//
// Exact. Ties go to the lowest index. Always full: a group cut short by the edge keeps the best
// `keep` of what is there, or all. Not transposable. Any group up to 64.
//
// The rank of a weight is the number of weights in its group that beat it; those of rank < keep
// stay. Groups are adjacent in the lanes of a vector, so ranks are counted by `group` compares
// per weight and lane, without branches: O(group) per weight. Groups of four floats stay in
// place: a weight is compared with the other three by rotating its group.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/mask/magnitude.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <limits>

#include "weft/mask/algorithms.h"
#include "weft/mask/solver.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// groups: [group, lanes], element i of group l at groups[i * lanes + l].
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void LoadSideBySide(D d, const T* HWY_RESTRICT row, size_t group,
                               T* HWY_RESTRICT groups) {
  const size_t lanes = hn::Lanes(d);
  if (group == 4) {
    hn::VFromD<D> v0, v1, v2, v3;
    hn::LoadInterleaved4(d, row, v0, v1, v2, v3);
    hn::Store(hn::Abs(v0), d, groups);
    hn::Store(hn::Abs(v1), d, groups + lanes);
    hn::Store(hn::Abs(v2), d, groups + 2 * lanes);
    hn::Store(hn::Abs(v3), d, groups + 3 * lanes);
    return;
  }
  for (size_t l = 0; l < lanes; ++l) {
    for (size_t i = 0; i < group; ++i) groups[i * lanes + l] = row[l * group + i];
  }
  for (size_t i = 0; i < group; ++i)
    hn::Store(hn::Abs(hn::Load(d, groups + i * lanes)), d, groups + i * lanes);
}

// kept[l]: the bits of group l.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void KeepLargest(D d, const T* HWY_RESTRICT groups, size_t group, size_t keep,
                            uint64_t* HWY_RESTRICT kept) {
  using Count = hwy::MakeSigned<T>;
  const hn::RebindToSigned<D> di;
  const size_t lanes = hn::Lanes(d);
  constexpr size_t kLaneBits = 8 * sizeof(T);
  HWY_ALIGN Count stored[hn::MaxLanes(hn::RebindToSigned<D>())];
  for (size_t l = 0; l < lanes; ++l) kept[l] = 0;

  for (size_t first = 0; first < group; first += kLaneBits) {
    const size_t last = HWY_MIN(group, first + kLaneBits);
    auto bits = hn::Zero(di);
    for (size_t i = first; i < last; ++i) {
      const auto mine = hn::Load(d, groups + i * lanes);
      auto beaten_by = hn::Zero(di);  // counted in -1
      for (size_t j = 0; j < i; ++j) {
        const auto wins = hn::Ge(hn::Load(d, groups + j * lanes), mine);
        beaten_by = hn::Add(beaten_by, hn::BitCast(di, hn::VecFromMask(d, wins)));
      }
      for (size_t j = i + 1; j < group; ++j) {
        const auto wins = hn::Gt(hn::Load(d, groups + j * lanes), mine);
        beaten_by = hn::Add(beaten_by, hn::BitCast(di, hn::VecFromMask(d, wins)));
      }
      const auto stays = hn::Gt(beaten_by, hn::Set(di, -static_cast<Count>(keep)));
      const auto bit = static_cast<Count>(hwy::MakeUnsigned<T>{1} << (i - first));
      bits = hn::Or(bits, hn::IfThenElseZero(stays, hn::Set(di, bit)));
    }
    hn::Store(bits, di, stored);
    for (size_t l = 0; l < lanes; ++l) {
      kept[l] |= static_cast<uint64_t>(static_cast<hwy::MakeUnsigned<T>>(stored[l])) << first;
    }
  }
}

// Groups are put together into words first: a write per group would take longer than the ranks.
HWY_INLINE void PutGroups(const uint64_t* kept, size_t count, int group, Mask& mask, int64_t row,
                          int64_t col) {
  const auto per_word = static_cast<size_t>(64 / group);
  for (size_t first = 0; first < count; first += per_word) {
    const size_t last = HWY_MIN(count, first + per_word);
    uint64_t word = 0;
    for (size_t l = last; l-- > first;) word = group == 64 ? kept[l] : (word << group) | kept[l];
    mask.put_bits(row, col + static_cast<int64_t>(first) * group,
                  static_cast<int>(last - first) * group, word);
  }
}

// From column `first_col` on, a multiple of the group.
template <typename T>
void MagnitudeBand(MatrixView<const T> band, const Pattern& pattern, int64_t first_col, Mask& mask,
                   int64_t first_row) {
  const hn::ScalableTag<T> d;
  const size_t lanes = hn::Lanes(d);
  HWY_ALIGN T groups[Pattern::kMaxGroup * hn::MaxLanes(hn::ScalableTag<T>())];
  uint64_t kept[hn::MaxLanes(hn::ScalableTag<T>())];
  const int group = pattern.group();
  const auto stride = static_cast<int64_t>(lanes) * group;

  for (int64_t r = 0; r < band.rows; ++r) {
    const T* row = band.row(r);
    int64_t col = first_col;
    for (; col + stride <= band.cols; col += stride) {
      LoadSideBySide(d, row + col, static_cast<size_t>(group), groups);
      KeepLargest(d, groups, static_cast<size_t>(group), static_cast<size_t>(pattern.keep()), kept);
      PutGroups(kept, lanes, group, mask, first_row + r, col);
    }
    // What is left: whole groups fewer than the lanes, then a short one, each in the first lane.
    for (; col < band.cols; col += group) {
      const auto count = static_cast<size_t>(HWY_MIN(group, band.cols - col));
      for (size_t i = 0; i < count; ++i) {
        hn::Store(hn::Set(d, std::abs(row[col + static_cast<int64_t>(i)])), d, groups + i * lanes);
      }
      KeepLargest(d, groups, count, static_cast<size_t>(pattern.keep()), kept);
      mask.put_bits(first_row + r, col, static_cast<int>(count), kept[0]);
    }
  }
}

void MagnitudeBandF32(MatrixView<const float> band, const Pattern& pattern, int64_t first_col,
                      Mask& mask, int64_t first_row) {
  MagnitudeBand(band, pattern, first_col, mask, first_row);
}
void MagnitudeBandF64(MatrixView<const double> band, const Pattern& pattern, int64_t first_col,
                      Mask& mask, int64_t first_row) {
  MagnitudeBand(band, pattern, first_col, mask, first_row);
}

// Groups of four in whole words of the mask: up to column cols / 64 * 64. Returns false, and leaves
// all to do, if one of these floats is not finite.
//
// Doubles are compared as floats: rounding keeps the order of those that stay different. A word in
// which two of a group become equal is left to the doubles themselves.
#if HWY_TARGET == HWY_SCALAR  // one lane, nothing to turn
template <typename T>
bool MagnitudeOf4(MatrixView<const T>, const Pattern&, Mask&, int64_t) {
  return false;
}
#else
using DF = hn::CappedTag<float, 16>;

HWY_INLINE hn::VFromD<DF> LoadFloats(const float* from) { return hn::LoadU(DF(), from); }
HWY_INLINE hn::VFromD<DF> LoadFloats(const double* from) {
  const hn::Half<DF> half;
  const hn::Rebind<double, decltype(half)> d;
  const auto lower = hn::DemoteTo(half, hn::LoadU(d, from));
  const auto upper = hn::DemoteTo(half, hn::LoadU(d, from + hn::Lanes(d)));
  return hn::Combine(DF(), upper, lower);
}

template <typename T>
bool MagnitudeOf4(MatrixView<const T> band, const Pattern& pattern, Mask& mask, int64_t first_row) {
  const DF df;
  const hn::RebindToSigned<DF> di;
  const size_t lanes = hn::Lanes(df);
  // Finite magnitudes compare like their bits. An equal one wins if it stands before, as if its
  // bits were one more: so it does after a turn by t in the last t lanes.
  alignas(16) constexpr int32_t kBefore[3][4] = {{0, 0, 0, 1}, {0, 0, 1, 1}, {0, 1, 1, 1}};
  const auto before1 = hn::LoadDup128(di, kBefore[0]);
  const auto before2 = hn::LoadDup128(di, kBefore[1]);
  const auto before3 = hn::LoadDup128(di, kBefore[2]);
  const auto limit = hn::Set(di, -pattern.keep());
  auto largest = hn::Zero(di);
  for (int64_t r = 0; r < band.rows; ++r) {
    uint64_t* words = mask.row_words(first_row + r);
    for (int64_t col = 0; col + 64 <= band.cols; col += 64) {
      uint64_t kept = 0;
      auto ties = hn::Zero(di);
      for (size_t c = 0; c < 64; c += lanes) {
        const T* from = band.row(r) + col + static_cast<int64_t>(c);
        const auto w = hn::BitCast(di, hn::Abs(LoadFloats(from)));
        const auto rotated1 = hn::Shuffle0321(w), rotated2 = hn::Shuffle1032(w);
        const auto wins = [&](auto other, auto before) HWY_ATTR {
          return hn::VecFromMask(di, hn::Gt(other, hn::Sub(w, before)));
        };
        const auto beaten_by =  // counted in -1
            hn::Add(hn::Add(wins(rotated1, before1), wins(rotated2, before2)),
                    wins(hn::Shuffle2103(w), before3));
        uint8_t bits[8] = {};
        hn::StoreMaskBits(di, hn::Gt(beaten_by, limit), bits);
        for (size_t b = 0; 8 * b < lanes; ++b) kept |= uint64_t{bits[b]} << (c + 8 * b);
        if constexpr (sizeof(T) == 4) {
          largest = hn::Max(largest, w);
        } else {
          const auto equal = hn::Or(hn::Eq(rotated1, w), hn::Eq(rotated2, w));
          ties = hn::Or(ties, hn::VecFromMask(di, equal));
        }
      }
      words[col / 64] = kept;
      if (sizeof(T) == 8 && HWY_UNLIKELY(!hn::AllTrue(di, hn::Eq(ties, hn::Zero(di))))) {
        const MatrixView<const T> to_the_word(band.row(r), 1, col + 64, band.row_stride);
        MagnitudeBand(to_the_word, pattern, col, mask, first_row + r);
      }
    }
  }
  constexpr int32_t kLargest = std::bit_cast<int32_t>(std::numeric_limits<float>::max());
  return hn::AllFalse(di, hn::Gt(largest, hn::Set(di, kLargest)));
}
#endif

bool MagnitudeOf4F32(MatrixView<const float> band, const Pattern& pattern, Mask& mask,
                     int64_t first_row) {
  return MagnitudeOf4(band, pattern, mask, first_row);
}
bool MagnitudeOf4F64(MatrixView<const double> band, const Pattern& pattern, Mask& mask,
                     int64_t first_row) {
  return MagnitudeOf4(band, pattern, mask, first_row);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(MagnitudeBandF32);
HWY_EXPORT(MagnitudeBandF64);
HWY_EXPORT(MagnitudeOf4F32);
HWY_EXPORT(MagnitudeOf4F64);

template <>
void magnitude_band(MatrixView<const float> band, const Pattern& pattern, Mask& mask,
                    int64_t first_row) {
  int64_t done = 0;
  if (pattern.group() == 4 &&
      HWY_DYNAMIC_DISPATCH(MagnitudeOf4F32)(band, pattern, mask, first_row)) {
    done = band.cols / 64 * 64;
  }
  if (unusable_weight(band.cols_from(done, band.cols - done))) require_usable(band, first_row);
  HWY_DYNAMIC_DISPATCH(MagnitudeBandF32)(band, pattern, done, mask, first_row);
}
template <>
void magnitude_band(MatrixView<const double> band, const Pattern& pattern, Mask& mask,
                    int64_t first_row) {
  int64_t done = 0;
  if (pattern.group() == 4 &&
      HWY_DYNAMIC_DISPATCH(MagnitudeOf4F64)(band, pattern, mask, first_row)) {
    done = band.cols / 64 * 64;
  }
  HWY_DYNAMIC_DISPATCH(MagnitudeBandF64)(band, pattern, done, mask, first_row);
}

}  // namespace weft
#endif
