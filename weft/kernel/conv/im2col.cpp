#include "weft/kernel/conv/im2col.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/core/transpose.h"

namespace weft {
namespace {

// The outputs of one row that see an input column through tap kx: [first, last).
struct Inside {
  int64_t first;
  int64_t last;
};

Inside inside(const ConvShape& s, int64_t kx) {
  const int64_t shift = kx * s.dilation_w - s.pad_w;  // input column of output 0
  const int64_t first = shift >= 0 ? 0 : (-shift + s.stride_w - 1) / s.stride_w;
  const int64_t past = s.width - shift;  // inputs left
  const int64_t last = past <= 0 ? 0 : (past + s.stride_w - 1) / s.stride_w;
  const int64_t outputs = s.out_width();
  return {std::min(first, outputs), std::clamp(last, std::min(first, outputs), outputs)};
}

// Outputs [begin, end) of row oy of one channel, as tap (ky, kx) sees them.
void copy_row(const ConvShape& s, const float* plane, int64_t ky, int64_t kx, int64_t oy,
              int64_t begin, int64_t end, float* to) {
  const int64_t iy = oy * s.stride_h - s.pad_h + ky * s.dilation_h;
  if (iy < 0 || iy >= s.height) {
    std::fill_n(to, end - begin, 0.0f);
    return;
  }
  const Inside in = inside(s, kx);
  const int64_t first = std::clamp(in.first, begin, end), last = std::clamp(in.last, first, end);
  std::fill_n(to, first - begin, 0.0f);
  // Counted from the output that the row begins with, which may be in the padding.
  const int64_t shift = iy * s.width + kx * s.dilation_w - s.pad_w;
  if (s.stride_w == 1) {
    if (last > first) {
      std::memcpy(to + first - begin, plane + shift + first,
                  static_cast<size_t>(last - first) * sizeof(float));
    }
  } else {
    for (int64_t ox = first; ox < last; ++ox) to[ox - begin] = plane[shift + ox * s.stride_w];
  }
  std::fill_n(to + last - begin, end - last, 0.0f);
}

}  // namespace

void Im2colSource::copy(const Range& range, float* to, int64_t stride) const {
  const ConvShape& s = shape_;
  const int64_t out_width = s.out_width(), positions = s.positions();
  for (int64_t r = 0; r < range.rows; ++r) {
    const int64_t row = range.first_row + r;
    const int64_t tap = row / s.group_ins();
    const int64_t channel = group_ * s.group_ins() + row % s.group_ins();
    float* line = to + r * stride;
    for (int64_t col = range.first_col; col < range.first_col + range.cols;) {
      const int64_t image = col / positions, position = col % positions;
      const int64_t oy = position / out_width, ox = position % out_width;
      const int64_t count = std::min(out_width - ox, range.first_col + range.cols - col);
      const float* plane = x_ + (image * s.ins + channel) * s.height * s.width;
      copy_row(s, plane, tap / s.kernel_w, tap % s.kernel_w, oy, ox, ox + count, line);
      line += count;
      col += count;
    }
  }
}

void Im2rowSource::copy(const Range& range, float* to, int64_t stride) const {
  constexpr int64_t kAtOnce = 64;  // positions: the transposed block stays in L1
  std::vector<float> block(static_cast<size_t>(range.cols * kAtOnce));
  for (int64_t r = 0; r < range.rows; r += kAtOnce) {
    const int64_t count = std::min(kAtOnce, range.rows - r);
    columns_.copy({range.first_col, range.cols, range.first_row + r, count}, block.data(), kAtOnce);
    transpose({block.data(), kAtOnce, range.cols, count, to + r * stride, stride});
  }
}

void add_columns(const ConvShape& s, const float* columns, int64_t tap_stride, float* plane) {
  for (int64_t ky = 0; ky < s.kernel_h; ++ky) {
    for (int64_t kx = 0; kx < s.kernel_w; ++kx) {
      const float* tap = columns + (ky * s.kernel_w + kx) * tap_stride;
      const Inside in = inside(s, kx);
      for (int64_t oy = 0; oy < s.out_height(); ++oy) {
        const int64_t iy = oy * s.stride_h - s.pad_h + ky * s.dilation_h;
        if (iy < 0 || iy >= s.height) continue;
        const int64_t shift = iy * s.width + kx * s.dilation_w - s.pad_w;
        const float* from = tap + oy * s.out_width();
        for (int64_t ox = in.first; ox < in.last; ++ox) {
          plane[shift + ox * s.stride_w] += from[ox];
        }
      }
    }
  }
}

}  // namespace weft
