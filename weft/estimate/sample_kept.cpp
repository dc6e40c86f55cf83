// Sampling without scales: the kept entries of a group go to slots, all cells at once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/estimate/sample_kept.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "weft/estimate/groups-inl.h"
#include "weft/estimate/sample_columns.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

// A group of tokens, and a whole vector of cells.
struct GroupTile {
  const KeptJob& job;
  int64_t token;  // the first
  int rows;
  int64_t cell;  // the first
  int64_t slot;  // the first

  const float* magnitudes() const { return job.magnitudes + token * job.planes.stride + cell; }
};

// The slots of a group while they fill: which entry, and something of it. kRows, kKeep: if known
// when compiled, else 0.
template <int kRows, int kKeep>
class Slots {
 public:
  HWY_INLINE Slots(int rows, int keep) : rows_(rows), keep_(keep) {}

  HWY_INLINE int rows() const { return kRows > 0 ? kRows : rows_; }
  HWY_INLINE int keep() const { return kKeep > 0 ? kKeep : keep_; }
  HWY_INLINE VI what(int j) const { return what_[j]; }

  // Entry i, in order, of which `before` are kept before it: it takes the place of the one before
  // in every slot that is not full, so that in the end each slot has the one that filled it. Slot j
  // is full by entry rows - keep + j, and not before entry j.
  HWY_INLINE void Add(int i, VI before, VI what) {
    const DI di;
    for (int j = HWY_MAX(0, keep() - (rows() - i)); j < HWY_MIN(i, keep()); ++j) {
      const auto open = hn::Gt(hn::Set(di, j + 1), before);
      index_[j] = hn::IfThenElse(open, hn::Set(di, i), index_[j]);
      what_[j] = hn::IfThenElse(open, what, what_[j]);
    }
    if (i < keep()) {
      index_[i] = hn::Set(di, i);
      what_[i] = what;
    }
  }

  // Slot j, to memory, the members times its scale.
  HWY_INLINE void Store(int j, VF scale, const GroupTile& tile) const {
    const DF df;
    const DI di;
    const MemberPlanes& planes = tile.job.planes;
    const int64_t slot = tile.slot + j;
    hn::Store(hn::Add(index_[j], hn::Set(di, static_cast<int32_t>(tile.token))), di,
              tile.job.indices + slot * planes.stride + tile.cell);
    const float* from = planes.data + tile.token * planes.stride + tile.cell;
    float* to = tile.job.values + slot * planes.share * planes.stride + tile.cell;
    for (int64_t m = 0; m < planes.share; ++m, from += planes.size, to += planes.stride) {
      VF value = hn::Load(df, from + j * planes.stride);  // j is the first that may be there
      for (int i = j + 1; i <= j + rows() - keep(); ++i) {
        const auto here = hn::RebindMask(df, hn::Eq(index_[j], hn::Set(di, i)));
        value = hn::IfThenElse(here, hn::Load(df, from + i * planes.stride), value);
      }
      hn::Store(hn::Mul(value, scale), df, to);
    }
  }

 private:
  static constexpr int kCapacity = kKeep > 0 ? kKeep : Pattern::kMaxGroup;
  VI index_[kCapacity];
  VI what_[kCapacity];
  int rows_;
  int keep_;
};

// `count` groups, one after the other, with their words.
template <int kRows, int kKeep>
HWY_NOINLINE void KeepExact(GroupTile tile, const VU* words, int count) {
  const int keep = kKeep > 0 ? kKeep : tile.job.keep;
  for (int k = 0; k < count; ++k, tile.token += tile.rows, tile.slot += keep) {
    Groups<kRows> groups(tile.magnitudes(), tile.job.planes.stride, tile.rows);
    groups.FindUnits(keep);
    Slots<kRows, kKeep> slots(tile.rows, keep);
    DrawExact(groups, words[k],
              [&](int i, VI before, VI, VI units) { slots.Add(i, before, units); });
    for (int j = 0; j < keep; ++j) slots.Store(j, ScaleOf(slots.what(j)), tile);
  }
}

// rows > 2
HWY_NOINLINE void KeepTwoDraw(const GroupTile& tile, VU word0, VU word1) {
  const DF df;
  const DI di;
  constexpr size_t kLanes = hn::MaxLanes(DF());
  HWY_ALIGN float scales[4 * kLanes];
  SampleTwoDraw(tile.magnitudes(), tile.job.planes.stride, tile.rows, word0, word1, scales, kLanes);
  Slots<0, 2> slots(tile.rows, 2);
  VI picked = hn::Zero(di);
  for (int i = 0; i < tile.rows; ++i) {
    const VI scale = hn::BitCast(di, hn::Load(df, scales + static_cast<size_t>(i) * kLanes));
    slots.Add(i, picked, scale);
    picked = hn::Sub(picked, hn::VecFromMask(di, hn::Gt(scale, hn::Zero(di))));
  }
  for (int j = 0; j < 2; ++j) slots.Store(j, hn::BitCast(df, slots.what(j)), tile);
}

// All of a group that has no more than it may keep.
HWY_NOINLINE void KeepAll(const GroupTile& tile) {
  Slots<0, 0> slots(tile.rows, tile.rows);
  const DI di;
  for (int i = 0; i < tile.rows; ++i) {
    slots.Add(i, hn::Set(di, i), hn::Zero(di));
    slots.Store(i, hn::Set(DF(), 1.0f), tile);
  }
}

// `count` groups of the same size, with their words. The patterns that train best have code of
// their own.
HWY_INLINE void KeepGroups(GroupTile tile, const VU* words, int count) {
  const int keep = tile.job.keep;
  if (tile.rows <= keep || tile.job.sampler == Sampler::kTwoDraw) {
    for (int k = 0; k < count; ++k, tile.token += tile.rows, tile.slot += keep) {
      tile.rows <= keep ? KeepAll(tile) : KeepTwoDraw(tile, words[2 * k], words[2 * k + 1]);
    }
    return;
  }
  if (tile.rows == 4 && keep == 2) return KeepExact<4, 2>(tile, words, count);
  if (tile.rows == 4 && keep == 1) return KeepExact<4, 1>(tile, words, count);
  if (tile.rows == 8 && keep == 1) return KeepExact<8, 1>(tile, words, count);
  if (tile.rows == 8) return KeepExact<8, 0>(tile, words, count);
  KeepExact<0, 0>(tile, words, count);
}

// The rows of parts [part, part + count) of `parts`.
HWY_INLINE void Fetch(MatrixView<const float> next, int64_t part, int64_t count, int64_t parts) {
  constexpr int64_t kLine = 16;
  for (int64_t t = next.rows * part / parts; t < next.rows * (part + count) / parts; ++t) {
    for (int64_t o = 0; o < next.cols; o += kLine) hwy::Prefetch(next.row(t) + o);
  }
}

void SampleKept(const KeptJob& job) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const int words_per_group = job.sampler == Sampler::kTwoDraw ? 2 : 1;
  const int64_t per_draw = 4 / words_per_group;
  const int64_t groups = (job.tokens + job.group - 1) / job.group;
  const int64_t vectors = job.planes.stride / lanes;
  for (int64_t begin = 0; begin < groups;) {
    const int64_t draw = (job.first_group + begin) / per_draw;
    const int64_t in_draw = (job.first_group + begin) % per_draw;
    const int64_t end = HWY_MIN(groups, begin + per_draw - in_draw);
    for (int64_t cell = 0; cell < job.planes.stride; cell += lanes) {
      Fetch(job.next, begin * vectors + (cell / lanes) * (end - begin), (end - begin),
            groups * vectors);
      const Words words = DrawWords(job.key, static_cast<uint64_t>(draw),
                                    static_cast<uint32_t>(job.first_cell + cell));
      const VU* word = words.of + in_draw * words_per_group;
      const int64_t whole = HWY_MIN(end, job.tokens / job.group) - begin;
      GroupTile tile{job, begin * job.group, job.group, cell, begin * job.keep};
      KeepGroups(tile, word, static_cast<int>(whole));
      if (begin + whole == end) continue;
      tile.token += whole * job.group;
      tile.slot += whole * job.keep;
      tile.rows = static_cast<int>(job.tokens - tile.token);
      KeepGroups(tile, word + whole * words_per_group, 1);
    }
    begin = end;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(SampleKept);

void sample_kept(const KeptJob& job) { HWY_DYNAMIC_DISPATCH(SampleKept)(job); }

}  // namespace weft
#endif
