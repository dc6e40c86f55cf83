// quick at 1:4, 2:4 and 3:4: whole 4 x 4 tiles, one per lane, in 32-bit integers, with a proof for
// each tile that its mask is the only best one. Tiles without the proof are left to the
// sums in double of exact_4x4.cpp, so both files together give the masks of that one alone.
//
// The score. Let e be 2 m - 1 for a full 2:4 mask m, 4 m - 1 for a 1:4 one, and q the magnitudes.
// Best is the m of the largest V = sum e q. Rows and columns of e sum to 0, so V depends on
//
//   D_c = q_0c - q_1c     E_c = q_2c - q_3c     S_c = q_0c + q_1c - q_2c - q_3c
//
// only. Write d_ab = D_a - D_b and so on, {a, b}, {x, y} for the six splits of the columns, and
// p for the three sign patterns + + - -, + - + -, + - - +. In the families of exact_4x4.cpp
//
//   2:4  same      |p . S|
//        opposite  max_p |p . D| + max_p |p . E|
//        crossed   |d_ab| + |e_ab| + |s_xy|
//   1:4            p . S + 2 |d_ab| + 2 |e_xy|,  p > 0 on a and b, < 0 on x and y
//
// where every |v| stands for two masks, one for each sign. 3:4 prunes a 1:4 mask of -q.
//
// The mask. q is a multiple of 2^7, and a small number of its own is added to every D_c, E_c, S_c.
// Signs that an |v| turns, it turns in that number too, so the lowest 7 bits of V add up to a code:
// kBias is such that all full masks have different ones (checked below). The largest V is thus
// found by max() alone, and a table gives the mask of its code.
//
// The proof. s |w| is rounded to a whole number q / 2^7 < 2^20.2, s being about 2^20 / max |w| of
// the tile. An error is at most 1/2 + 1/16 + 1/13, the second where there is no fused multiply-add,
// the third where w was a double and became a float first: 2^-24 of s |w|, or for the least of
// floats 2^-150 s, s being at most 2^120. sum |e| is 16 or 24: in units of 2^7, V is wrong by less
// than 15.4, and 1 for the code. Hence, if V exceeds the second best by 33 or more, so does s times
// the true score by more than 0.2, and more than double rounding, which is 2^-28 here, could
// change. |V| < 12 * 2^20.2 * 2^7 fits.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/mask/quick_4x4.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <span>

#include "weft/mask/algorithms.h"
#include "weft/mask/solver.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using VI = hn::VFromD<DI>;

constexpr int kCodeBits = 7;
constexpr uint32_t kUnsure = 1 << kCodeBits;
constexpr int32_t kMargin = 33 << kCodeBits;

// Of D, E and S, per column; found by trying at random.
using Bias = std::array<std::array<int32_t, 4>, 3>;
alignas(16) constexpr Bias kBias24 = {{{0, 20, 11, 30}, {0, 5, 40, 17}, {0, 16, 38, 21}}};
alignas(16) constexpr Bias kBias14 = {{{0, 3, 7, 4}, {0, 9, 16, 12}, {0, 0, 0, 0}}};
constexpr const Bias& BiasOf(int keep) { return keep == 2 ? kBias24 : kBias14; }

// Masks by code, row r at bit 16 * r; nothing for kUnsure.
using MaskTable = std::array<uint64_t, kUnsure + 1>;

constexpr MaskTable MakeMasks(int keep) {
  MaskTable table = {};
  const Bias& bias = BiasOf(keep);
  const int chosen = keep == 2 ? 2 : 1;  // per row and column; at 3:4 the pruned ones
  std::array<uint32_t, 6> rows = {};     // all rows there are
  size_t count = 0;
  for (uint32_t row = 0; row < 16; ++row) {
    if (std::popcount(row) == chosen) rows[count++] = row;
  }
  for (size_t i = 0; i < count * count * count * count; ++i) {
    const uint32_t m[4] = {rows[i % count], rows[i / count % count],
                           rows[i / count / count % count], rows[i / count / count / count]};
    int code = 0;
    bool full = true;
    for (size_t c = 0; c < 4; ++c) {
      const auto at = [&](int r) { return static_cast<int>((m[r] >> c) & 1); };
      full = full && at(0) + at(1) + at(2) + at(3) == chosen;
      code += bias[0][c] * (at(0) - at(1)) + bias[1][c] * (at(2) - at(3)) +
              bias[2][c] * ((at(0) + at(1) - at(2) - at(3)) / chosen);
    }
    if (!full) continue;
    uint64_t& entry = table[static_cast<uint32_t>(code) % kUnsure];
    for (int r = 0; r < 4; ++r) {
      entry |= static_cast<uint64_t>(keep == 3 ? m[r] ^ 15 : m[r]) << (16 * r);
    }
  }
  return table;
}

constexpr std::array<MaskTable, 3> kMasks = {MakeMasks(1), MakeMasks(2), MakeMasks(3)};

// Masks that shared a code would leave fewer entries.
constexpr int CountMasks(const MaskTable& table) {
  int count = 0;
  for (const uint64_t entry : table) count += entry != 0;
  return count;
}
static_assert(CountMasks(kMasks[0]) == 24 && CountMasks(kMasks[1]) == 90 &&
              CountMasks(kMasks[2]) == 24);

#if HWY_TARGET != HWY_SCALAR

// One value per column of a tile, tiles side by side in lanes.
struct Columns {
  VI of[4];
};

// v[k]: tiles as stored in a row, four lanes each. Lane 4 b + k is tile b of v[k].
HWY_INLINE Columns Transpose(const VI (&v)[4]) {
  const DI d;
  const hn::Repartition<int64_t, DI> d64;
  const auto pairs = [&](VI a) { return hn::BitCast(d64, a); };
  const auto lower01 = pairs(hn::InterleaveLower(d, v[0], v[1]));
  const auto lower23 = pairs(hn::InterleaveLower(d, v[2], v[3]));
  const auto upper01 = pairs(hn::InterleaveUpper(d, v[0], v[1]));
  const auto upper23 = pairs(hn::InterleaveUpper(d, v[2], v[3]));
  return {{hn::BitCast(d, hn::InterleaveLower(d64, lower01, lower23)),
           hn::BitCast(d, hn::InterleaveUpper(d64, lower01, lower23)),
           hn::BitCast(d, hn::InterleaveLower(d64, upper01, upper23)),
           hn::BitCast(d, hn::InterleaveUpper(d64, upper01, upper23))}};
}

// v_ab for the splits 01|23, 23|01, 02|13, 13|02, 03|12, 12|03: the other half of split i is i ^ 1.
struct Differences {
  explicit HWY_INLINE Differences(const Columns& v)
      : of{hn::Sub(v.of[0], v.of[1]), hn::Sub(v.of[2], v.of[3]), hn::Sub(v.of[0], v.of[2]),
           hn::Sub(v.of[1], v.of[3]), hn::Sub(v.of[0], v.of[3]), hn::Sub(v.of[1], v.of[2])} {}
  // p . v, where p > 0 on columns 0 and 1, 0 and 2, 0 and 3.
  HWY_INLINE VI Dot01() const { return hn::Add(of[2], of[3]); }
  HWY_INLINE VI Dot02() const { return hn::Add(of[0], of[1]); }
  HWY_INLINE VI Dot03() const { return hn::Sub(of[0], of[1]); }
  VI of[6];
};

// The largest and the second largest of the scores that went in.
struct Best {
  VI first;
  VI second;

  HWY_INLINE void Take(VI score) {
    second = hn::Max(second, hn::Min(first, score));
    first = hn::Max(first, score);
  }
  // A score and the best of those that differ from it by a sign.
  HWY_INLINE void Take(VI score, VI next) {
    second = hn::Max(second, next);
    Take(score);
  }
};

HWY_INLINE Best LargestOfThree(VI a, VI b, VI c) {
  Best best = {hn::Max(a, b), hn::Min(a, b)};
  best.Take(c);
  return best;
}

// The other sign of a |v| need not be looked at where |v| is one of several candidates: none of
// them is negative.
HWY_INLINE Best Solve24(const Columns& D, const Columns& E, const Columns& S) {
  const Differences d(D), e(E), s(S);
  const auto dots = [](const Differences& v) {
    return LargestOfThree(hn::Abs(v.Dot01()), hn::Abs(v.Dot02()), hn::Abs(v.Dot03()));
  };
  Best best = dots(s);
  const Best top = dots(d), bottom = dots(e);
  best.Take(hn::Add(top.first, bottom.first),
            hn::Max(hn::Add(top.first, bottom.second), hn::Add(top.second, bottom.first)));
  for (int i = 0; i < 6; ++i) {
    const VI x = hn::Abs(d.of[i]), y = hn::Abs(e.of[i]), z = hn::Abs(s.of[i ^ 1]);
    const VI sum = hn::Add(hn::Add(x, y), z);
    const VI least = hn::Min(hn::Min(x, y), z);
    best.Take(sum, hn::Sub(sum, hn::Add(least, least)));
  }
  return best;
}

// D and E come doubled.
HWY_INLINE Best Solve14(const Columns& D, const Columns& E, const Columns& S) {
  const Differences d(D), e(E), s(S);
  const VI dots[3] = {s.Dot01(), s.Dot02(), s.Dot03()};
  const VI lowest = hn::Set(DI(), std::numeric_limits<int32_t>::min());
  Best best = {lowest, lowest};
  for (int i = 0; i < 6; ++i) {
    const VI x = hn::Abs(d.of[i]), y = hn::Abs(e.of[i ^ 1]);
    const VI dot = dots[i / 2];
    const VI sum = hn::Add(x, y);
    const VI score = i % 2 == 0 ? hn::Add(sum, dot) : hn::Sub(sum, dot);
    const VI least = hn::Min(x, y);
    best.Take(score, hn::Sub(score, hn::Add(least, least)));
  }
  return best;
}

// Tiles are solved in chunks that fill a word of every row of the mask.
constexpr int64_t kChunk = 64;
constexpr size_t kTiles = kChunk / 4;

// codes: of the tiles of a chunk, in lanes; kUnsure for some unless it returns true. `worst`
// collects the largest bits of |w| seen.
template <int kKeep>
HWY_INLINE bool SolveChunk(const float* HWY_RESTRICT rows, int64_t stride, VI& worst,
                           uint32_t* HWY_RESTRICT codes) {
  const DF df;
  const DI di;
  const size_t lanes = hn::Lanes(df);
  // The bits of 2^20 / m are nearly kTwo20 less those of m: what they stand for times m is between
  // 2^20 and 9/8 of it. One scale for all cells of a tile changes no order, so it may be any.
  constexpr uint32_t kTwo20 = uint32_t{127 + 20 + 127} << 23, kSign = uint32_t{1} << 31;
  const VI reciprocal = hn::Set(di, static_cast<int32_t>(kKeep == 3 ? kTwo20 + kSign : kTwo20));
  const VI tiny = hn::Set(di, (127 - 100) << 23);  // 2^-100: 2^20 / m must not overflow
  const auto whole = hn::Set(df, 0x1.8p23F);       // x + whole has the bits of whole + round(x)
  constexpr const Bias& kBias = BiasOf(kKeep);
  const VI bias_d = hn::LoadDup128(di, kBias[0].data());
  const VI bias_e = hn::LoadDup128(di, kBias[1].data());
  const VI bias_s = hn::LoadDup128(di, kBias[2].data());
  constexpr int kDouble = kKeep == 2 ? 0 : 1;
  auto all_sure = hn::FirstN(di, lanes);
  for (size_t first = 0; first < kTiles; first += lanes) {
    VI D[4], E[4], S[4];
    for (size_t k = 0; k < 4; ++k) {
      const float* from = rows + 4 * first + k * lanes;
      VI w[4];
      for (int64_t r = 0; r < 4; ++r) {
        w[r] = hn::BitCast(di, hn::Abs(hn::LoadU(df, from + r * stride)));
      }
      VI most = hn::Max(hn::Max(w[0], w[1]), hn::Max(w[2], w[3]));
      worst = hn::Max(worst, most);
      most = hn::Max(most, hn::Shuffle2301(most));
      most = hn::Max(hn::Max(most, hn::Shuffle1032(most)), tiny);
      const auto scale = hn::BitCast(df, hn::Sub(reciprocal, most));
      VI q[4];
      for (int r = 0; r < 4; ++r) {
        q[r] = hn::BitCast(di, hn::MulAdd(hn::BitCast(df, w[r]), scale, whole));
      }
      D[k] = hn::Add(hn::ShiftLeft<kCodeBits + kDouble>(hn::Sub(q[0], q[1])), bias_d);
      E[k] = hn::Add(hn::ShiftLeft<kCodeBits + kDouble>(hn::Sub(q[2], q[3])), bias_e);
      S[k] = hn::Add(hn::ShiftLeft<kCodeBits>(hn::Sub(hn::Add(q[0], q[1]), hn::Add(q[2], q[3]))),
                     bias_s);
    }
    const Columns d = Transpose(D), e = Transpose(E), s = Transpose(S);
    const Best best = kKeep == 2 ? Solve24(d, e, s) : Solve14(d, e, s);
    const auto sure = hn::Gt(hn::Sub(best.first, best.second), hn::Set(di, kMargin - 1));
    const VI code = hn::And(best.first, hn::Set(di, kUnsure - 1));
    all_sure = hn::And(all_sure, sure);
    hn::StoreU(
        hn::BitCast(hn::RebindToUnsigned<DI>(), hn::IfThenElse(sure, code, hn::Set(di, kUnsure))),
        hn::RebindToUnsigned<DI>(), codes + first);
  }
  return hn::AllTrue(di, all_sure);
}

// Where Transpose() put a tile: the lanes of a vector are four vectors of tiles.
HWY_INLINE size_t TileOf(size_t lane) {
  const size_t lanes = hn::Lanes(DF()), in_vector = lane % lanes;
  return lane - in_vector + in_vector % 4 * (lanes / 4) + in_vector / 4;
}

// Four rows of 4 x 16 bits, transposed: from tiles of four rows to rows of four tiles.
HWY_INLINE void TransposeWords(uint64_t (&words)[4]) {
  const auto swap = [](uint64_t& a, uint64_t& b, int shift, uint64_t low) {
    const uint64_t change = ((a >> shift) ^ b) & low;
    a ^= change << shift;
    b ^= change;
  };
  swap(words[0], words[1], 16, 0x0000ffff0000ffff);
  swap(words[2], words[3], 16, 0x0000ffff0000ffff);
  swap(words[0], words[2], 32, 0x00000000ffffffff);
  swap(words[1], words[3], 32, 0x00000000ffffffff);
}

// As SolveChunk, without solving.
HWY_INLINE void PassChunk(const float* HWY_RESTRICT rows, int64_t stride, VI& worst) {
  const DF df;
  const DI di;
  for (int64_t r = 0; r < 4; ++r) {
    for (size_t c = 0; c < kChunk; c += hn::Lanes(df)) {
      const auto w = hn::Abs(hn::LoadU(df, rows + r * stride + c));
      worst = hn::Max(worst, hn::BitCast(di, w));
    }
  }
}

HWY_INLINE void CopyRow(const float* HWY_RESTRICT from, int64_t count, float* HWY_RESTRICT to) {
  std::copy_n(from, count, to);
}
// A magnitude beyond the floats becomes infinite.
HWY_INLINE void CopyRow(const double* HWY_RESTRICT from, int64_t count, float* HWY_RESTRICT to) {
  const hn::CappedTag<double, 8> d;
  const hn::Rebind<float, decltype(d)> df;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t c = 0;
  for (; c + lanes <= count; c += lanes) {
    hn::StoreU(hn::DemoteTo(df, hn::LoadU(d, from + c)), df, to + c);
  }
  for (; c < count; ++c) {
    to[c] = hn::GetLane(hn::DemoteTo(df, hn::Set(d, from[c])));
  }
}

template <int kKeep, typename T>
bool Quick4x4(MatrixView<const T> band, std::span<uint16_t> unsure, Mask& mask, int64_t first_row) {
  const DI di;
  const MaskTable& masks = kMasks[kKeep - 1];
  const int64_t whole = band.cols / 4 * 4;
  uint64_t* to[4];
  for (int64_t r = 0; r < 4; ++r) to[r] = mask.row_words(first_row + r);
  HWY_ALIGN float padded[4 * kChunk] = {};
  HWY_ALIGN uint32_t codes[kTiles];
  VI worst = hn::Zero(di);
  int hopeless = 0;

  for (size_t chunk = 0; chunk < unsure.size(); ++chunk) {
    const auto col = static_cast<int64_t>(chunk) * kChunk;
    const int64_t count = HWY_MIN(whole - col, kChunk);
    const float* rows = padded;
    int64_t stride = kChunk;
    if (std::is_same_v<T, double> || count < kChunk) {
      for (int64_t r = 0; r < 4; ++r) CopyRow(band.row(r) + col, count, padded + r * kChunk);
    } else if constexpr (std::is_same_v<T, float>) {
      rows = band.data + col;
      stride = band.row_stride;
    }
    // Where most tiles are full of ties, next to them there are more: do not try all of them.
    if (HWY_UNLIKELY(hopeless > 0)) {
      --hopeless;
      unsure[chunk] = 0xffff;
      PassChunk(rows, stride, worst);
      continue;
    }
    const bool sure = SolveChunk<kKeep>(rows, stride, worst, codes);
    uint64_t words[4] = {};
    for (size_t lane = 0; lane < kTiles; ++lane) {
      const size_t tile = TileOf(lane);
      words[tile / 4] |= masks[codes[lane]] << (4 * (tile % 4));
    }
    TransposeWords(words);
    const uint64_t there = ~uint64_t{0} >> (kChunk - count);
    for (size_t r = 0; r < 4; ++r) to[r][chunk] = words[r] & there;
    if (HWY_LIKELY(sure)) continue;
    for (size_t lane = 0; lane < kTiles; ++lane) {
      if (codes[lane] == kUnsure) unsure[chunk] |= static_cast<uint16_t>(1 << TileOf(lane));
    }
    if (std::popcount(unsure[chunk]) > static_cast<int>(kTiles) / 2) hopeless = 15;
  }
  constexpr int32_t kLargest = std::bit_cast<int32_t>(std::numeric_limits<float>::max());
  return hn::AllFalse(di, hn::Gt(worst, hn::Set(di, kLargest)));
}

template <typename T>
bool Quick4x4Band(MatrixView<const T> band, int keep, std::span<uint16_t> unsure, Mask& mask,
                  int64_t first_row) {
  if (keep == 1) return Quick4x4<1>(band, unsure, mask, first_row);
  if (keep == 2) return Quick4x4<2>(band, unsure, mask, first_row);
  return Quick4x4<3>(band, unsure, mask, first_row);
}

#else  // one lane, so there is no row of a tile to shuffle: all is left to the sums in double

template <typename T>
bool Quick4x4Band(MatrixView<const T> band, int, std::span<uint16_t> unsure, Mask&, int64_t) {
  std::fill(unsure.begin(), unsure.end(), uint16_t{0xffff});
  return !unusable_weight(band);
}

#endif

bool Quick4x4BandF32(MatrixView<const float> band, int keep, std::span<uint16_t> unsure, Mask& mask,
                     int64_t first_row) {
  return Quick4x4Band(band, keep, unsure, mask, first_row);
}
bool Quick4x4BandF64(MatrixView<const double> band, int keep, std::span<uint16_t> unsure,
                     Mask& mask, int64_t first_row) {
  return Quick4x4Band(band, keep, unsure, mask, first_row);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(Quick4x4BandF32);
HWY_EXPORT(Quick4x4BandF64);

template <>
bool quick_4x4_band(MatrixView<const float> band, const Pattern& pattern,
                    std::span<uint16_t> unsure, Mask& mask, int64_t first_row) {
  return HWY_DYNAMIC_DISPATCH(Quick4x4BandF32)(band, pattern.keep(), unsure, mask, first_row);
}
template <>
bool quick_4x4_band(MatrixView<const double> band, const Pattern& pattern,
                    std::span<uint16_t> unsure, Mask& mask, int64_t first_row) {
  return HWY_DYNAMIC_DISPATCH(Quick4x4BandF64)(band, pattern.keep(), unsure, mask, first_row);
}

}  // namespace weft
#endif
