// Scales, row by row: what mvue.h says, for columns of magnitudes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "weft/estimate/sample_columns.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include <algorithm>

#include "weft/estimate/groups-inl.h"
#include "weft/estimate/sample_columns.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

// Rows of scales: zero where an entry is not kept.
template <int kRows>
HWY_INLINE void ExactScales(const float* from, int64_t from_stride, int count, int keep, VU word,
                            float* to, int64_t to_stride) {
  const DF df;
  Groups<kRows> groups(from, from_stride, count);
  groups.FindUnits(keep);
  DrawExact(groups, word, [&](int i, VI before, VI picked, VI units) {
    const auto kept = hn::RebindMask(df, hn::Gt(picked, before));
    hn::StoreU(hn::IfThenElseZero(kept, ScaleOf(units)), df, to + i * to_stride);
  });
}

// One group of `rows` tokens and a whole vector of cells. Not inlined: three callers would treble
// the time to compile, which sanitizers make minutes of.
HWY_NOINLINE void SampleVector(Sampler sampler, int keep, const float* from, int64_t from_stride,
                               int rows, VU word0, VU word1, float* to, int64_t to_stride) {
  const DF df;
  if (rows <= keep) {
    for (int i = 0; i < rows; ++i) hn::StoreU(hn::Set(df, 1.0f), df, to + i * to_stride);
  } else if (sampler == Sampler::kTwoDraw) {
    SampleTwoDraw(from, from_stride, rows, word0, word1, to, to_stride);
  } else if (rows == 2) {
    ExactScales<2>(from, from_stride, rows, keep, word0, to, to_stride);
  } else if (rows == 4) {
    ExactScales<4>(from, from_stride, rows, keep, word0, to, to_stride);
  } else if (rows == 8) {
    ExactScales<8>(from, from_stride, rows, keep, word0, to, to_stride);
  } else {
    ExactScales<0>(from, from_stride, rows, keep, word0, to, to_stride);
  }
}

// Cells [cell, cell + count) of a group, fewer than a vector: by way of a copy.
HWY_NOINLINE void SampleFew(const ColumnsJob& job, int64_t token, int rows, int64_t cell,
                            int64_t count, VU word0, VU word1) {
  constexpr size_t kLanes = hn::MaxLanes(DF());
  HWY_ALIGN float from[Pattern::kMaxGroup * kLanes] = {};
  HWY_ALIGN float to[Pattern::kMaxGroup * kLanes];
  constexpr auto kStride = static_cast<int64_t>(kLanes);
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(job.magnitudes.row(token + i) + cell, count, from + i * kStride);
  }
  SampleVector(job.sampler, job.keep, from, kStride, rows, word0, word1, to, kStride);
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(to + i * kStride, count, job.scales.row(token + i) + cell);
  }
}

// Groups [begin, end), whose words come from one draw, the first of them at `word`.
HWY_INLINE void SampleCells(const ColumnsJob& job, int64_t begin, int64_t end, int64_t cell,
                            const Words& words, int word) {
  const auto lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const int64_t count = HWY_MIN(lanes, job.magnitudes.cols - cell);
  const int step = job.sampler == Sampler::kTwoDraw ? 2 : 1;
  for (int64_t g = begin; g < end; ++g, word += step) {
    const int64_t token = g * job.group;
    const int rows = static_cast<int>(HWY_MIN(job.group, job.magnitudes.rows - token));
    const VU word0 = words.of[word], word1 = words.of[(word + 1) % 4];
    if (HWY_UNLIKELY(count < lanes)) {
      SampleFew(job, token, rows, cell, count, word0, word1);
      continue;
    }
    SampleVector(job.sampler, job.keep, job.magnitudes.row(token) + cell, job.magnitudes.row_stride,
                 rows, word0, word1, job.scales.row(token) + cell, job.scales.row_stride);
  }
}

void SampleColumns(const ColumnsJob& job) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(DF()));
  const int words_per_group = job.sampler == Sampler::kTwoDraw ? 2 : 1;
  const int64_t per_draw = 4 / words_per_group;
  const int64_t groups = (job.magnitudes.rows + job.group - 1) / job.group;
  for (int64_t begin = 0; begin < groups;) {
    const int64_t draw = (job.first_group + begin) / per_draw;
    const int64_t in_draw = (job.first_group + begin) % per_draw;
    const int64_t end = HWY_MIN(groups, begin + per_draw - in_draw);
    for (int64_t cell = 0; cell < job.magnitudes.cols; cell += lanes) {
      const Words words = DrawWords(job.key, static_cast<uint64_t>(draw),
                                    static_cast<uint32_t>(job.first_cell + cell));
      SampleCells(job, begin, end, cell, words, static_cast<int>(in_draw) * words_per_group);
    }
    begin = end;
  }
}

void SampleOneGroup(const OneGroup& group) {
  const DU du;
  constexpr size_t kLanes = hn::MaxLanes(DF());
  HWY_ALIGN float from[Pattern::kMaxGroup * kLanes] = {};
  HWY_ALIGN float to[Pattern::kMaxGroup * kLanes];
  const int rows = static_cast<int>(group.magnitudes.size());
  for (int i = 0; i < rows; ++i) from[i * kLanes] = group.magnitudes[i];
  SampleVector(group.sampler, group.keep, from, kLanes, rows, hn::Set(du, group.words[0]),
               hn::Set(du, group.words[1]), to, kLanes);
  for (size_t i = 0; i < group.scales.size(); ++i) group.scales[i] = to[i * kLanes];
  if (group.units.empty()) return;
  if (group.keep >= rows) {
    std::fill(group.units.begin(), group.units.end(), kProbabilityUnit);
    return;
  }
  Groups<0> found(from, kLanes, rows);
  found.FindUnits(group.keep);
  for (int i = 0; i < rows; ++i) {
    group.units[i] = static_cast<uint32_t>(hn::GetLane(found.units(i)));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

HWY_EXPORT(SampleColumns);
HWY_EXPORT(SampleOneGroup);

void sample_columns(const ColumnsJob& job) { HWY_DYNAMIC_DISPATCH(SampleColumns)(job); }
void sample_one_group(const OneGroup& group) { HWY_DYNAMIC_DISPATCH(SampleOneGroup)(group); }

}  // namespace weft
#endif
