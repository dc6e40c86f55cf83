// exact at 1:4, 2:4 and 3:4: whole 4 x 4 tiles, one per lane, without search.
//
// Optimal among full masks. Ties go to the candidate that comes first below. Sums are taken in
// double, in one order on every instruction set, so the mask is the same everywhere; the kept
// magnitude is within 2^-50 (relative) of the optimum.
//
// Let {a, b} be two columns and {x, y} the other two; there are six such splits. With rows (0, 1)
// and (2, 3) paired, every full 2:4 mask is one of
//
//   same      rows 0, 1 both keep {a, b}          rows 2, 3 both keep {x, y}
//   opposite  row 0 keeps {a, b}, row 1 {x, y}    row 2 keeps {c, d}, row 3 the other two
//   crossed   rows 0, 1 both keep x, and one of   rows 2, 3 both keep y, and one of {a, b} each
//             {a, b} each                         (or with x and y exchanged)
//
// 6 + 36 + 48 = 90 masks. The two halves of an `opposite` mask are independent, and so are the
// three choices of a `crossed` one; hence six rounds of about 40 operations find the best.
//
// Floats come here only where quick_4x4.cpp cannot prove that its mask is the one found here.
//
// 1:4 is a permutation: rows 0, 1 share {a, b} in one of two ways, rows 2, 3 share {x, y}.
// 3:4 prunes a permutation, so it is 1:4 on negated weights.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/mask/exact_4x4.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>
#include <span>

#include "weft/mask/algorithms.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<double, 16>;  // a chunk of tiles
using V = hn::VFromD<D>;

// Scores and the masks that reach them. A mask is 16 bits, bit 4 * row + col, held as a double so
// that scores and masks are selected by the same vector masks; masks of disjoint cells add up.
struct Choice {
  V score;
  V mask;
};

HWY_INLINE V MaskOf(int cells) { return hn::Set(D(), static_cast<double>(cells)); }
HWY_INLINE constexpr int Cell(int row, int col) { return 1 << (4 * row + col); }

// The first of the two unless the second is better.
HWY_INLINE Choice Better(const Choice& first, const Choice& second) {
  const auto second_wins = hn::Gt(second.score, first.score);
  return {hn::Max(first.score, second.score), hn::IfThenElse(second_wins, second.mask, first.mask)};
}

HWY_INLINE Choice Both(const Choice& one, const Choice& other) {
  return {hn::Add(one.score, other.score), hn::Add(one.mask, other.mask)};
}

// w: [4, 4, Lanes], magnitudes of Lanes tiles side by side.
class Tiles {
 public:
  explicit Tiles(const double* HWY_RESTRICT w) : w_(w), lanes_(hn::Lanes(D())) {}

  V At(int row, int col) const {
    return hn::Load(D(), w_ + static_cast<size_t>(4 * row + col) * lanes_);
  }
  // Two cells of one column, or of one row.
  V Pair(int row0, int col0, int row1, int col1) const {
    return hn::Add(At(row0, col0), At(row1, col1));
  }
  // One of columns a, b for each of two rows.
  Choice OneEach(int row0, int row1, int a, int b) const {
    return Better({Pair(row0, a, row1, b), MaskOf(Cell(row0, a) | Cell(row1, b))},
                  {Pair(row0, b, row1, a), MaskOf(Cell(row0, b) | Cell(row1, a))});
  }

 private:
  const double* HWY_RESTRICT w_;
  size_t lanes_;
};

struct Best24 {
  Choice same_or_crossed;
  Choice opposite_top;     // rows 0, 1
  Choice opposite_bottom;  // rows 2, 3
};

template <int a, int b, int x, int y>
HWY_INLINE void Round24(const Tiles& w, Best24& best) {
  constexpr auto whole_pair = [](int row, int c0, int c1) { return Cell(row, c0) | Cell(row, c1); };
  const V top_ab = hn::Add(w.Pair(0, a, 1, a), w.Pair(0, b, 1, b));
  const V bottom_xy = hn::Add(w.Pair(2, x, 3, x), w.Pair(2, y, 3, y));
  const Choice same = {hn::Add(top_ab, bottom_xy),
                       MaskOf(whole_pair(0, a, b) | whole_pair(1, a, b) | whole_pair(2, x, y) |
                              whole_pair(3, x, y))};

  const auto column_pair = [&](int top, int bottom) -> Choice {
    return {hn::Add(w.Pair(0, top, 1, top), w.Pair(2, bottom, 3, bottom)),
            MaskOf(Cell(0, top) | Cell(1, top) | Cell(2, bottom) | Cell(3, bottom))};
  };
  const Choice crossed = Both(Both(w.OneEach(0, 1, a, b), w.OneEach(2, 3, a, b)),
                              Better(column_pair(x, y), column_pair(y, x)));

  const auto opposite = [&](int row) -> Choice {
    return {hn::Add(w.Pair(row, a, row, b), w.Pair(row + 1, x, row + 1, y)),
            MaskOf(whole_pair(row, a, b) | whole_pair(row + 1, x, y))};
  };
  best.same_or_crossed = Better(Better(best.same_or_crossed, same), crossed);
  best.opposite_top = Better(best.opposite_top, opposite(0));
  best.opposite_bottom = Better(best.opposite_bottom, opposite(2));
}

// Six rounds, one per split of the columns; Round is called with the columns as constants.
template <int a, int b, int x, int y>
HWY_INLINE void Round14(const Tiles& w, Choice& best) {
  best = Better(best, Both(w.OneEach(0, 1, a, b), w.OneEach(2, 3, x, y)));
}

HWY_INLINE V Solve24(const Tiles& w) {
  const V lowest = hn::Set(D(), -1.0);
  const Choice none = {lowest, hn::Zero(D())};
  Best24 best = {none, none, none};
  Round24<0, 1, 2, 3>(w, best);
  Round24<0, 2, 1, 3>(w, best);
  Round24<0, 3, 1, 2>(w, best);
  Round24<1, 2, 0, 3>(w, best);
  Round24<1, 3, 0, 2>(w, best);
  Round24<2, 3, 0, 1>(w, best);
  return Better(best.same_or_crossed, Both(best.opposite_top, best.opposite_bottom)).mask;
}

HWY_INLINE V Solve14(const Tiles& w) {
  Choice best = Both(w.OneEach(0, 1, 0, 1), w.OneEach(2, 3, 2, 3));
  Round14<0, 2, 1, 3>(w, best);
  Round14<0, 3, 1, 2>(w, best);
  Round14<1, 2, 0, 3>(w, best);
  Round14<1, 3, 0, 2>(w, best);
  Round14<2, 3, 0, 1>(w, best);
  return best.mask;
}

// Four rows of `Lanes` tiles into [4, 4, Lanes]; `sign` is 1, or -1 to negate magnitudes.
template <typename T>
HWY_INLINE void LoadTiles(MatrixView<const T> band, V sign, double* HWY_RESTRICT w) {
  const D d;
  const hn::Rebind<T, D> dt;
  const size_t lanes = hn::Lanes(d);
  const auto widen = [&](hn::VFromD<decltype(dt)> v) {
    if constexpr (sizeof(T) == 8) {
      return hn::Abs(v);
    } else {
      return hn::PromoteTo(d, hn::Abs(v));
    }
  };
  for (int64_t r = 0; r < 4; ++r) {
    hn::VFromD<decltype(dt)> v0, v1, v2, v3;
    hn::LoadInterleaved4(dt, band.row(r), v0, v1, v2, v3);
    double* to = w + static_cast<size_t>(4 * r) * lanes;
    hn::Store(hn::Mul(widen(v0), sign), d, to);
    hn::Store(hn::Mul(widen(v1), sign), d, to + lanes);
    hn::Store(hn::Mul(widen(v2), sign), d, to + 2 * lanes);
    hn::Store(hn::Mul(widen(v3), sign), d, to + 3 * lanes);
  }
}

// Where in a mask the tiles go.
struct Corner {
  int64_t row;
  int64_t col;
};

// As many tiles as there are lanes, beginning at column 0 of the band; the masks of the first
// `count` of them go to `corner` of the mask, within one of its words.
template <typename T>
HWY_INLINE void SolveTiles(MatrixView<const T> band, int keep, size_t count, Mask& mask,
                           Corner corner) {
  const D d;
  const hn::Rebind<int32_t, D> di32;
  HWY_ALIGN double w[16 * hn::MaxLanes(D())];
  HWY_ALIGN int32_t masks[hn::MaxLanes(D())];
  LoadTiles(band, hn::Set(d, keep == 3 ? -1.0 : 1.0), w);
  const Tiles tiles(w);
  hn::Store(hn::DemoteTo(di32, keep == 2 ? Solve24(tiles) : Solve14(tiles)), di32, masks);

  const uint32_t flip = keep == 3 ? 0xffff : 0;
  uint64_t rows[4] = {};
  for (size_t l = 0; l < count; ++l) {
    const uint64_t tile = static_cast<uint32_t>(masks[l]) ^ flip;
    for (size_t r = 0; r < 4; ++r) rows[r] |= ((tile >> (4 * r)) & 15) << (4 * l);
  }
  const uint64_t ones = ~uint64_t{0} >> (64 - 4 * count);
  for (size_t r = 0; r < 4; ++r) {
    uint64_t& word = mask.row_words(corner.row + static_cast<int64_t>(r))[corner.col / 64];
    word = (word & ~(ones << corner.col % 64)) | (rows[r] << corner.col % 64);
  }
}

template <typename T>
void Exact4x4Band(MatrixView<const T> band, const Pattern& pattern,
                  std::span<const uint16_t> wanted, Mask& mask, int64_t first_row) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(D()));
  const int64_t tiles = band.cols / 4;
  HWY_ALIGN T padded[16 * hn::MaxLanes(D())] = {};
  for (int64_t tile = 0; tile < tiles; tile += lanes) {
    const uint32_t chunk = wanted[static_cast<size_t>(tile / 16)];
    if (chunk == 0) tile += 16 - lanes;
    if (((chunk >> (tile % 16)) & ((1U << lanes) - 1)) == 0) continue;
    const int64_t count = HWY_MIN(lanes, tiles - tile), col = 4 * tile;
    // Whole tiles fewer than the lanes take the same path, so that ties fall the same way whatever
    // the vector length.
    if (count < lanes) {
      for (int64_t r = 0; r < 4; ++r) {
        std::copy_n(band.row(r) + col, 4 * count, padded + 4 * lanes * r);
      }
    }
    const MatrixView<const T> from =
        count < lanes ? MatrixView<const T>(padded, 4, 4 * lanes) : band.cols_from(col, 4 * lanes);
    SolveTiles(from, pattern.keep(), static_cast<size_t>(count), mask, Corner{first_row, col});
  }
}

void Exact4x4BandF32(MatrixView<const float> band, const Pattern& pattern,
                     std::span<const uint16_t> wanted, Mask& mask, int64_t first_row) {
  Exact4x4Band(band, pattern, wanted, mask, first_row);
}
void Exact4x4BandF64(MatrixView<const double> band, const Pattern& pattern,
                     std::span<const uint16_t> wanted, Mask& mask, int64_t first_row) {
  Exact4x4Band(band, pattern, wanted, mask, first_row);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(Exact4x4BandF32);
HWY_EXPORT(Exact4x4BandF64);

template <>
void exact_4x4_band(MatrixView<const float> band, const Pattern& pattern,
                    std::span<const uint16_t> wanted, Mask& mask, int64_t first_row) {
  HWY_DYNAMIC_DISPATCH(Exact4x4BandF32)(band, pattern, wanted, mask, first_row);
}
template <>
void exact_4x4_band(MatrixView<const double> band, const Pattern& pattern,
                    std::span<const uint16_t> wanted, Mask& mask, int64_t first_row) {
  HWY_DYNAMIC_DISPATCH(Exact4x4BandF64)(band, pattern, wanted, mask, first_row);
}

}  // namespace weft
#endif
