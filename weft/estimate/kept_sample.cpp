#include "weft/estimate/kept_sample.h"

#include <algorithm>
#include <cstring>

#include "weft/core/ceil_div.h"
#include "weft/core/error.h"
#include "weft/estimate/sample_columns.h"

namespace weft {
namespace {

constexpr int64_t kLine = kCacheLine / sizeof(float);  // as wide as any vector

int64_t slots_of(int64_t tokens, const Pattern& pattern) {
  return tokens / pattern.group() * pattern.keep() +
         std::min<int64_t>(pattern.keep(), tokens % pattern.group());
}

template <typename T>
AlignedBuffer<T> zeros(int64_t size) {
  AlignedBuffer<T> buffer(static_cast<size_t>(size));
  std::fill_n(buffer.data(), size, T{});
  return buffer;
}

}  // namespace

KeptSample::KeptSample(const Pattern& pattern, int64_t tokens, int64_t outs)
    : pattern_(pattern),
      tokens_(tokens),
      outs_(outs),
      cells_(sampled_cells(outs, pattern)),
      stride_(ceil_div(cells_, kLine) * kLine),
      planes_(zeros<float>(pattern.share() * tokens * stride_)),
      inverses_(static_cast<size_t>(stride_)),
      norms_(static_cast<size_t>(pattern.share() > 1 ? tokens * stride_ : 0)),
      values_(static_cast<size_t>(slots_of(tokens, pattern) * pattern.share() * stride_)),
      indices_(static_cast<size_t>(slots_of(tokens, pattern) * stride_)) {
  const int64_t group = pattern.group();
  for (int64_t c = 0; c < stride_; ++c) {
    const int64_t first = c / group * pattern.block() + c % group;
    const int64_t members = ceil_div(std::max<int64_t>(1, outs - first), group);
    inverses_.data()[c] = 1.0 / static_cast<double>(std::min<int64_t>(pattern.share(), members));
  }
}

// Runs of a group, one member of as many cells, move as they are.
template <int64_t kGroup>
void KeptSample::arrange_blocks(MatrixView<const float> g) {
  const int64_t group = kGroup > 0 ? kGroup : pattern_.group(), share = pattern_.share();
  const int64_t whole = outs_ / pattern_.block(), plane = tokens_ * stride_;
  for (int64_t t = 0; t < g.rows; ++t) {
    const float* from = g.row(t);
    float* to = planes_.data() + t * stride_;
    for (int64_t b = 0; b < whole; ++b, to += group) {
      for (int64_t m = 0; m < share; ++m, from += group) {
        std::memcpy(to + m * plane, from, static_cast<size_t>(group) * sizeof(float));
      }
    }
    for (int64_t left = outs_ - whole * pattern_.block(); left > 0; left -= group) {
      std::memcpy(to, from, static_cast<size_t>(std::min(group, left)) * sizeof(float));
      from += group;
      to += plane;
    }
  }
}

void KeptSample::arrange(MatrixView<const float> g) {
  if (pattern_.share() == 1) {
    for (int64_t t = 0; t < g.rows; ++t) std::copy_n(g.row(t), outs_, planes_.data() + t * stride_);
    return;
  }
  // Of a size that is known when compiled, a copy is a load and a store.
  switch (pattern_.group()) {
    case 4: return arrange_blocks<4>(g);
    case 8: return arrange_blocks<8>(g);
    default: return arrange_blocks<0>(g);
  }
}

void KeptSample::draw(MatrixView<const float> g, const SampleOptions& options,
                      MatrixView<const float> next) {
  WEFT_CHECK(options.pattern == pattern_ && g.cols == outs_ && g.rows <= tokens_,
             "a tile of {} x {} for {}, made for {} x {} and {}", g.rows, g.cols,
             options.pattern.str(), tokens_, outs_, pattern_.str());
  check_sampling(options, g.rows, g.cols);
  slots_ = slots_of(g.rows, pattern_);
  arrange(g);
  KeptJob job;
  job.planes = {planes_.data(), inverses_.data(), pattern_.share(), stride_, tokens_ * stride_};
  job.magnitudes = planes_.data();
  if (pattern_.share() > 1) {
    plane_norms(job.planes, g.rows, norms_.data());
    job.magnitudes = norms_.data();
  }
  job.tokens = g.rows;
  job.next = next;
  job.values = values_.data();
  job.indices = indices_.data();
  job.keep = pattern_.keep();
  job.group = pattern_.group();
  job.sampler = options.sampler;
  job.key = philox_key(options.key);
  job.first_group = options.first_group;
  job.first_cell = options.first_cell;
  sample_kept(job);
}

}  // namespace weft
