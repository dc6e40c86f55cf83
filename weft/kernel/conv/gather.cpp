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

// The program of one stripe.
class StripeProgram {
 public:
  StripeProgram(const Gather& gather, int64_t first_col, int64_t cols)
      : gather_(gather), lanes_(gather_lanes()) {
    starts_.reserve(gather.taps.size() + 1);
    for (const TapOffset& tap : gather.taps) {
      starts_.push_back(static_cast<int64_t>(vectors_.size()));
      for (int64_t col = 0; col < cols; col += lanes_) {
        add_vector(tap, first_col + col, col, std::min<int64_t>(lanes_, cols - col));
      }
    }
    starts_.push_back(static_cast<int64_t>(vectors_.size()));
  }

  // Rows [first_row, first_row + rows) of B; row r to `to + r * stride`.
  void run(int64_t first_row, int64_t rows, float* to, int64_t stride) const {
    const auto taps = static_cast<int64_t>(gather_.taps.size());
    GatherJob job;
    job.plane_step = gather_.height * gather_.width;
    job.stride_w = gather_.stride_w;
    job.loads = loads_.data();
    job.to_step = taps * stride;
    for (int64_t tap = 0; tap < taps; ++tap) {
      const int64_t channel = ceil_div(std::max<int64_t>(0, first_row - tap), taps);
      const int64_t end = ceil_div(std::max<int64_t>(0, first_row + rows - tap), taps);
      if (channel >= end) continue;
      const auto t = static_cast<size_t>(tap);
      job.planes = gather_.planes + channel * job.plane_step;
      job.channels = end - channel;
      job.vectors = vectors_.data() + starts_[t];
      job.vector_count = starts_[t + 1] - starts_[t];
      job.to = to + (channel * taps + tap - first_row) * stride;
      run_gather(job);
    }
  }

  // Of a single tap: every line of a plane is read once, and the next channel is on another page.
  // Lines that several taps read are in the cache already.
  void foresee(int64_t first_row, int64_t rows, std::vector<const float*>& lines) const {
    if (gather_.taps.size() != 1) return;
    for (int64_t channel = first_row; channel < first_row + rows; ++channel) {
      const float* plane = gather_.planes + channel * gather_.height * gather_.width;
      for (const GatherLoad& load : loads_) {
        lines.push_back(plane + load.from + load.first * gather_.stride_w);
      }
    }
  }

 private:
  // Columns [col, col + count) of B, which one tap sees in runs of one output row each.
  void add_vector(const TapOffset& tap, int64_t col, int64_t to, int64_t count) {
    GatherVector vector{to, static_cast<int32_t>(loads_.size()), 0};
    const int64_t positions = gather_.positions();
    for (int64_t lane = 0; lane < count;) {
      const int64_t image = (col + lane) / positions, position = (col + lane) % positions;
      const int64_t p = position / gather_.out_width, q = position % gather_.out_width;
      const int64_t run = std::min(gather_.out_width - q, count - lane);
      add_load(tap, image, p, q - lane, lane, lane + run);
      lane += run;
    }
    vector.count = static_cast<int32_t>(loads_.size()) - vector.first;
    vectors_.push_back(vector);
  }

  // Lanes [first, last) of row p; lane i is column q + i.
  void add_load(const TapOffset& tap, int64_t image, int64_t p, int64_t q, int64_t first,
                int64_t last) {
    const int64_t y = p * gather_.stride_h + tap.dy;
    if (y < 0 || y >= gather_.height) return;
    // 0 <= x + i * stride < width
    const int64_t x = q * gather_.stride_w + tap.dx, stride = gather_.stride_w;
    if (x < 0) first = std::max(first, ceil_div(-x, stride));
    last = x >= gather_.width ? first : std::min(last, ceil_div(gather_.width - x, stride));
    if (first >= last) return;
    loads_.push_back({image * gather_.image_step + y * gather_.width + x,
                      static_cast<int32_t>(first), static_cast<int32_t>(last)});
  }

  const Gather& gather_;
  int64_t lanes_;
  std::vector<GatherVector> vectors_;
  std::vector<GatherLoad> loads_;
  std::vector<int64_t> starts_;  // of the vectors of each tap
};

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

GatherSource::GatherSource(Gather gather) : gather_(simplified(std::move(gather))) {}

std::unique_ptr<BandReader> GatherSource::band(int64_t first_col, int64_t cols) const {
  return std::make_unique<GatherReader>(gather_, first_col, cols);
}

}  // namespace weft
