// exact: the transposable mask of largest magnitude, for a tile of any shape.
//
// Optimal among full masks (tile.h): every row keeps row_keep, no column more than col_keep, or
// the other way round where that is the larger side. Sums are taken in double; the kept magnitude
// is optimal up to their rounding. Of equal columns a row takes the one that fewest rows above it
// took, then the leftmost; of equal chains (below) the one found first is followed. All of that
// depends on values and positions only, so the mask is the same on every instruction set.
//
// Columns have prices. Every row takes the row_keep columns of largest |w_ij| + price_j: the best
// that rows can do, but some columns are now crowded. A row that gives up column j for column k
// loses |w_ij| - |w_ik|; a chain of such moves leads from a crowded column to one with room. Take
// the chain of least loss, and repeat until no column is crowded: successive shortest paths for the
// minimum-cost flow of Hubara et al. 2021, begun from an optimal but infeasible state, so that only
// as many paths are needed as there are rows too many in crowded columns. Each path is a Dijkstra
// over the columns, with prices that keep all losses non-negative.
//
// Where every column must be full in the end, any prices are good to begin with, and good guesses
// leave few columns crowded: one round of coordinate descent on the dual problem. Otherwise they
// begin at 0. Taking turns among equal columns does for ties what prices cannot: a tile of equal
// weights needs no paths at all.
//
// Relaxing a column is vector work: O(paths * cols * rows * cols / lanes) per tile.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/mask/exact.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <bit>
#include <limits>

#include "weft/mask/algorithms.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kMaxSide = Pattern::kMaxGroup;

class TileSolver {
 public:
  // weight: [rows, cols] magnitudes, rows * row_keep <= cols * col_keep.
  TileSolver(const double* weight, size_t rows, size_t cols, int row_keep, int col_keep)
      : rows_(rows),
        cols_(cols),
        row_keep_(row_keep),
        col_keep_(col_keep),
        balanced_(static_cast<int>(rows) * row_keep == static_cast<int>(cols) * col_keep) {
    const size_t lanes = hn::Lanes(d_);
    stride_ = (cols + lanes - 1) / lanes * lanes;
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < stride_; ++c) {
        // Padding columns weigh less than nothing: no row takes them, no chain reaches them.
        weight_[r * stride_ + c] = c < cols ? weight[r * cols + c] : -kInfinity;
      }
    }
  }

  void Solve(uint64_t* kept) {
    for (size_t c = 0; c < stride_; ++c) {
      price_[c] = 0;
      order_[c] = static_cast<double>(c);
      room_[c] = c < cols_ ? col_keep_ : 0;
    }
    if (balanced_ && row_keep_ < static_cast<int>(cols_)) GuessPrices();
    for (size_t r = 0; r < rows_; ++r) TakeHeaviest(r);
    double crowd = 0;
    for (size_t c = 0; c < cols_; ++c) crowd += HWY_MAX(0.0, -room_[c]);
    for (; crowd > 0; --crowd) MoveAlong(CheapestChain());
    for (size_t r = 0; r < rows_; ++r) kept[r] = held_[r];
  }

 private:
  using V = hn::VFromD<hn::ScalableTag<double>>;

  // For the columns c .. c + lanes of a row of values: how many others beat each; of equals, the
  // one of lower order_ wins.
  HWY_INLINE V BeatenBy(const double* row, size_t c) const {
    const V mine = hn::Load(d_, row + c);
    const V order = hn::Load(d_, order_ + c);
    V beaten_by = hn::Zero(d_);
    for (size_t j = 0; j < cols_; ++j) {
      const V other = hn::Set(d_, row[j]);
      const auto earlier = hn::Gt(order, hn::Set(d_, order_[j]));
      const auto wins = hn::Or(hn::Gt(other, mine), hn::And(hn::Eq(other, mine), earlier));
      beaten_by = hn::Add(beaten_by, hn::IfThenElseZero(wins, hn::Set(d_, 1.0)));
    }
    return beaten_by;
  }

  // One round of coordinate descent on the dual: what the last column that a row takes is worth to
  // it, then how much dearer each column must be so that col_keep rows want it.
  HWY_INLINE void GuessPrices() {
    const size_t lanes = hn::Lanes(d_);
    HWY_ALIGN double surplus[kMaxSide * kMaxSide];  // |w| less the threshold of the row
    const V keep = hn::Set(d_, static_cast<double>(row_keep_));
    const V one = hn::Set(d_, 1.0);
    for (size_t r = 0; r < rows_; ++r) {
      const double* row = weight_ + r * stride_;
      V last_taken = hn::Zero(d_), first_left = hn::Zero(d_);
      for (size_t c = 0; c < stride_; c += lanes) {
        const V rank = BeatenBy(row, c), mine = hn::Load(d_, row + c);
        last_taken =
            hn::Add(last_taken, hn::IfThenElseZero(hn::Eq(hn::Add(rank, one), keep), mine));
        first_left = hn::Add(first_left, hn::IfThenElseZero(hn::Eq(rank, keep), mine));
      }
      const V sum = hn::Add(hn::SumOfLanes(d_, last_taken), hn::SumOfLanes(d_, first_left));
      const V threshold = hn::Mul(hn::Set(d_, 0.5), sum);
      for (size_t c = 0; c < stride_; c += lanes) {
        hn::Store(hn::Sub(hn::Load(d_, row + c), threshold), d_, surplus + r * stride_ + c);
      }
    }
    const V col_keep = hn::Set(d_, static_cast<double>(col_keep_));
    for (size_t c = 0; c < cols_; c += lanes) {
      V last_taken = hn::Zero(d_), first_left = hn::Zero(d_);
      for (size_t r = 0; r < rows_; ++r) {
        const V mine = hn::Load(d_, surplus + r * stride_ + c);
        V rank = hn::Zero(d_);
        for (size_t q = 0; q < r; ++q) {
          const auto wins = hn::Ge(hn::Load(d_, surplus + q * stride_ + c), mine);
          rank = hn::Add(rank, hn::IfThenElseZero(wins, one));
        }
        for (size_t q = r + 1; q < rows_; ++q) {
          const auto wins = hn::Gt(hn::Load(d_, surplus + q * stride_ + c), mine);
          rank = hn::Add(rank, hn::IfThenElseZero(wins, one));
        }
        last_taken =
            hn::Add(last_taken, hn::IfThenElseZero(hn::Eq(hn::Add(rank, one), col_keep), mine));
        first_left = hn::Add(first_left, hn::IfThenElseZero(hn::Eq(rank, col_keep), mine));
      }
      hn::Store(hn::Mul(hn::Set(d_, -0.5), hn::Add(last_taken, first_left)), d_, price_ + c);
    }
    for (size_t c = cols_; c < stride_; ++c) price_[c] = 0;
  }

  // Gives row r its heaviest columns, prices included; of equals, those that fewest rows above
  // hold. Were it the leftmost ones, rows of ties would all crowd the same columns.
  HWY_INLINE void TakeHeaviest(size_t r) {
    const size_t lanes = hn::Lanes(d_);
    const double* row = weight_ + r * stride_;
    HWY_ALIGN double priced[kMaxSide];
    for (size_t c = 0; c < stride_; c += lanes) {
      hn::Store(hn::Add(hn::Load(d_, row + c), hn::Load(d_, price_ + c)), d_, priced + c);
    }
    const V keep = hn::Set(d_, static_cast<double>(row_keep_));
    for (size_t c = 0; c < stride_; c += lanes) {
      const auto takes = hn::Lt(BeatenBy(priced, c), keep);
      hn::Store(hn::IfThenElse(takes, hn::Set(d_, kInfinity), hn::Neg(hn::Load(d_, row + c))), d_,
                offer_ + r * stride_ + c);
    }
    held_[r] = 0;
    for (size_t c = 0; c < cols_; ++c) {
      if (offer_[r * stride_ + c] == kInfinity) {
        held_[r] |= uint64_t{1} << c;
        holders_[c] |= uint64_t{1} << r;
        --room_[c];
        order_[c] += kMaxSide;
      }
    }
  }

  // Labels columns with their distance from the crowded ones until the nearest column with room is
  // certain, updates the prices, and returns that column; via_ leads back. There always is one: not
  // every row that holds a crowded column can hold one with room as well.
  //
  // Nearest in reduced costs is nearest: in a balanced tile every column must be filled in the end,
  // whichever comes first; otherwise all columns with room have the same price, that of never
  // having been reached.
  HWY_INLINE size_t CheapestChain() {
    for (size_t c = 0; c < stride_; ++c) {
      const bool crowded = c < cols_ && room_[c] < 0;
      label_[c] = crowded ? price_[c] : kInfinity;
      via_[c] = kStart;
    }
    Next next = NextColumn();
    for (; room_[next.column] <= 0; next = NextColumn()) {
      const double distance = label_[next.column];
      price_[next.column] = distance;
      label_[next.column] = kDone;
      Relax(next.column, distance);
    }
    for (size_t c = 0; c < cols_; ++c) {
      if (label_[c] != kDone) price_[c] += next.key;
    }
    return next.column;
  }

  struct Next {
    size_t column;
    double key;  // distance in reduced costs
  };

  // The nearest column that is not done; of equals, the first with room, which ends the search, or
  // else the first.
  HWY_INLINE Next NextColumn() const {
    const size_t lanes = hn::Lanes(d_);
    auto least = hn::Set(d_, kInfinity);
    for (size_t c = 0; c < stride_; c += lanes) least = hn::Min(least, Keys(c));
    const auto key = hn::MinOfLanes(d_, least);
    Next first = {0, kInfinity};
    for (size_t c = 0; c < stride_; c += lanes) {
      const auto nearest = hn::Eq(Keys(c), key);
      const intptr_t lane = hn::FindFirstTrue(d_, nearest);
      if (lane < 0) continue;
      const auto has_room = hn::Gt(hn::Load(d_, room_ + c), hn::Zero(d_));
      const intptr_t with_room = hn::FindFirstTrue(d_, hn::And(nearest, has_room));
      if (with_room >= 0) return {c + static_cast<size_t>(with_room), hn::GetLane(key)};
      if (first.key == kInfinity) first = {c + static_cast<size_t>(lane), hn::GetLane(key)};
    }
    return first;
  }

  HWY_INLINE hn::VFromD<hn::ScalableTag<double>> Keys(size_t c) const {
    const auto label = hn::Load(d_, label_ + c);
    const auto done = hn::Eq(label, hn::Set(d_, kDone));
    return hn::IfThenElse(done, hn::Set(d_, kInfinity), hn::Sub(label, hn::Load(d_, price_ + c)));
  }

  // Every row that holds `column` may give it up for one that it does not hold.
  HWY_INLINE void Relax(size_t column, double distance) {
    const size_t lanes = hn::Lanes(d_);
    double given[kMaxSide];  // distance + |w|, per holder
    size_t holders[kMaxSide];
    size_t count = 0;
    for (uint64_t rest = holders_[column]; rest != 0; rest &= rest - 1) {
      const auto r = static_cast<size_t>(std::countr_zero(rest));
      holders[count] = r;
      given[count++] = distance + weight_[r * stride_ + column];
    }
    for (size_t c = 0; c < stride_; c += lanes) {
      auto label = hn::Load(d_, label_ + c);
      auto via = hn::Load(d_, via_ + c);
      for (size_t h = 0; h < count; ++h) {
        const size_t r = holders[h];
        const auto candidate =
            hn::Add(hn::Set(d_, given[h]), hn::Load(d_, offer_ + r * stride_ + c));
        const auto closer = hn::Lt(candidate, label);
        label = hn::Min(candidate, label);
        via = hn::IfThenElse(closer, hn::Set(d_, static_cast<double>(r * kMaxSide + column)), via);
      }
      hn::Store(label, d_, label_ + c);
      hn::Store(via, d_, via_ + c);
    }
  }

  HWY_INLINE void MoveAlong(size_t end) {
    --room_[end];
    size_t column = end;
    while (via_[column] != kStart) {
      const auto step = static_cast<size_t>(via_[column]);
      const size_t r = step / kMaxSide, given = step % kMaxSide;
      held_[r] ^= (uint64_t{1} << column) | (uint64_t{1} << given);
      holders_[column] |= uint64_t{1} << r;
      holders_[given] &= ~(uint64_t{1} << r);
      offer_[r * stride_ + column] = kInfinity;
      offer_[r * stride_ + given] = -weight_[r * stride_ + given];
      column = given;
    }
    ++room_[column];
  }

  static constexpr double kStart = -1;         // via_: the chain begins here
  static constexpr double kDone = -kInfinity;  // label_: final; the distance is in price_

  hn::ScalableTag<double> d_;
  size_t rows_, cols_, stride_;
  int row_keep_, col_keep_;
  bool balanced_;            // every column will be full, so any prices are good to begin with
  uint64_t held_[kMaxSide];  // bit c of word r: row r keeps column c
  uint64_t holders_[kMaxSide] = {};   // the same by columns
  HWY_ALIGN double label_[kMaxSide];  // distance from the crowded columns, so far
  HWY_ALIGN double price_[kMaxSide];
  HWY_ALIGN double room_[kMaxSide];   // col_keep less the rows that hold it: negative if crowded
  HWY_ALIGN double order_[kMaxSide];  // 64 * rows that took it at first + column
  HWY_ALIGN double via_[kMaxSide];    // row * 64 + column of the last move, exact in a double
  HWY_ALIGN double weight_[kMaxSide * kMaxSide];
  HWY_ALIGN double offer_[kMaxSide * kMaxSide];  // -|w|, or infinity where the row holds the column
};

void SolveTile(const double* weight, size_t rows, size_t cols, int row_keep, int col_keep,
               uint64_t* kept) {
  TileSolver(weight, rows, cols, row_keep, col_keep).Solve(kept);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(SolveTile);

void exact_tile(const Tile& tile, TileMask& kept) {
  const auto rows = static_cast<size_t>(tile.rows), cols = static_cast<size_t>(tile.cols);
  if (tile.rows * tile.row_keep() <= tile.cols * tile.col_keep()) {
    HWY_DYNAMIC_DISPATCH(SolveTile)
    (tile.magnitude.data(), rows, cols, tile.row_keep(), tile.col_keep(), kept.data());
    return;
  }
  // Columns are the side that can be full: solve the transposed tile.
  std::array<double, Pattern::kMaxGroup * Pattern::kMaxGroup> transposed;
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) transposed[c * rows + r] = tile.magnitude[r * cols + c];
  }
  TileMask kept_transposed{};
  HWY_DYNAMIC_DISPATCH(SolveTile)
  (transposed.data(), cols, rows, tile.col_keep(), tile.row_keep(), kept_transposed.data());
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < cols; ++c) kept[r] |= ((kept_transposed[c] >> r) & 1) << c;
  }
}

}  // namespace weft
#endif
