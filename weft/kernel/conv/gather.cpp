#include "weft/kernel/conv/gather.h"

#include <algorithm>
#include <utility>

#include "weft/core/ceil_div.h"

namespace weft {
namespace {

// A kernel of one tap without padding or stride reads planes from end to end: as one long row.
Gather simplified(Gather g) {
  const bool plain = g.taps.size() == 1 && g.taps[0].dy == 0 && g.taps[0].dx == 0 &&
                     g.stride_h == 1 && g.stride_w == 1 && g.out_width == g.width &&
                     g.out_height == g.height;
  if (!plain) return g;
  g.width *= g.height;
  g.out_width *= g.out_height;
  g.height = g.out_height = 1;
  return g;
}

class GatherReader : public BandReader {
 public:
  GatherReader(const Gather& gather, int64_t first_col, int64_t cols)
      : program_(gather, first_col, cols) {}
  void copy(const Range& range, float* to, int64_t stride) override {
    program_.run(range.first_row, range.rows, to, stride);
  }
  void foresee(const Range& range, std::vector<const float*>& lines) const override {
    program_.foresee(range.first_row, range.rows, lines);
  }

 private:
  StripeProgram program_;
};

}  // namespace

// Lanes [first, last) of a vector: columns of B that lie in one row of outputs. Lane i is column
// q + i of row p.
struct StripeProgram::Run {
  size_t vector;  // of the stripe
  int64_t image, p, q;
  int64_t first, last;
};

StripeProgram::StripeProgram(const Gather& gather, int64_t first_col, int64_t cols)
    : gather_(gather) {
  const int64_t lanes = gather_lanes(), positions = gather.positions();
  vectors_per_tap_ = ceil_div(cols, lanes);
  std::vector<Run> runs;
  int64_t image = first_col / positions, position = first_col % positions;
  int64_t p = position / gather.out_width, q = position % gather.out_width;
  for (int64_t col = 0; col < cols;) {
    const int64_t lane = col % lanes;
    const int64_t count = std::min({gather.out_width - q, lanes - lane, cols - col});
    runs.push_back({static_cast<size_t>(col / lanes), image, p, q - lane, lane, lane + count});
    col += count;
    q += count;
    if (q < gather.out_width) continue;
    q = 0;
    if (++p < gather.out_height) continue;
    p = 0;
    ++image;
  }
  vectors_.reserve(gather.taps.size() * static_cast<size_t>(vectors_per_tap_));
  loads_.reserve(gather.taps.size() * runs.size());
  for (const TapOffset& tap : gather.taps) {
    auto run = runs.begin();
    for (int64_t v = 0; v < vectors_per_tap_; ++v) {
      GatherVector vector{v * lanes, static_cast<int32_t>(loads_.size()), 0};
      for (; run != runs.end() && run->vector == static_cast<size_t>(v); ++run) add_load(tap, *run);
      vector.count = static_cast<int32_t>(loads_.size()) - vector.first;
      vectors_.push_back(vector);
    }
  }
}

// What a tap sees in a run, without what is outside of the plane.
void StripeProgram::add_load(const TapOffset& tap, const Run& run) {
  const int64_t y = run.p * gather_.stride_h + tap.dy;
  if (y < 0 || y >= gather_.height) return;
  // 0 <= x + i * stride < width
  const int64_t stride = gather_.stride_w, x = run.q * stride + tap.dx;
  const int64_t first = x + run.first * stride >= 0 ? run.first : ceil_div(-x, stride);
  const int64_t last = x + (run.last - 1) * stride < gather_.width ? run.last
                       : x < gather_.width ? ceil_div(gather_.width - x, stride)
                                           : 0;
  if (first >= last) return;
  loads_.push_back({run.image * gather_.image_step + y * gather_.width + x,
                    static_cast<int32_t>(first), static_cast<int32_t>(last)});
}

void StripeProgram::run(int64_t first_row, int64_t rows, float* to, int64_t stride) const {
  const auto taps = static_cast<int64_t>(gather_.taps.size());
  for (int64_t tap = 0; tap < taps; ++tap) {
    const int64_t channel = ceil_div(std::max<int64_t>(0, first_row - tap), taps);
    const int64_t end = ceil_div(std::max<int64_t>(0, first_row + rows - tap), taps);
    if (channel >= end) continue;
    run_tap(tap, channel, end - channel, to + (channel * taps + tap - first_row) * stride,
            taps * stride);
  }
}

void StripeProgram::run_tap(int64_t tap, int64_t first, int64_t count, float* to,
                            int64_t stride) const {
  GatherJob job;
  job.plane_step = gather_.height * gather_.width;
  job.planes = gather_.planes + first * job.plane_step;
  job.channels = count;
  job.stride_w = gather_.stride_w;
  job.vectors = vectors_.data() + tap * vectors_per_tap_;
  job.vector_count = vectors_per_tap_;
  job.loads = loads_.data();
  job.to = to;
  job.to_step = stride;
  run_gather(job);
}

// Of a single tap: every line of a plane is read once, and the next channel is on another page.
// Lines that several taps read are in the cache already.
void StripeProgram::foresee(int64_t first_row, int64_t rows,
                            std::vector<const float*>& lines) const {
  if (gather_.taps.size() != 1) return;
  for (int64_t channel = first_row; channel < first_row + rows; ++channel) {
    const float* plane = gather_.planes + channel * gather_.height * gather_.width;
    for (const GatherLoad& load : loads_) {
      lines.push_back(plane + load.from + load.first * gather_.stride_w);
    }
  }
}

Gather gather_of_inputs(const ConvShape& s, const float* x, int64_t group) {
  Gather gather;
  gather.planes = x + group * s.group_ins() * s.height * s.width;
  gather.images = s.images;
  gather.image_step = s.ins * s.height * s.width;
  gather.channels = s.group_ins();
  gather.height = s.height;
  gather.width = s.width;
  gather.out_height = s.out_height();
  gather.out_width = s.out_width();
  gather.stride_h = s.stride_h;
  gather.stride_w = s.stride_w;
  for (int64_t tap = 0; tap < s.taps(); ++tap) {
    gather.taps.push_back(
        {tap / s.kernel_w * s.dilation_h - s.pad_h, tap % s.kernel_w * s.dilation_w - s.pad_w});
  }
  return simplified(std::move(gather));
}

GatherSource::GatherSource(Gather gather) : gather_(simplified(std::move(gather))) {}

std::unique_ptr<BandReader> GatherSource::band(int64_t first_col, int64_t cols) const {
  return std::make_unique<GatherReader>(gather_, first_col, cols);
}

}  // namespace weft
