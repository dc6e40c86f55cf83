#include "weft/kernel/conv/image_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "weft/core/aligned_buffer.h"
#include "weft/core/ceil_div.h"
#include "weft/core/transpose.h"

namespace weft {
namespace {

// One block of channels.
class ImageRowsReader : public BandReader {
 public:
  ImageRowsReader(const ConvShape& shape, const float* x, int64_t block, int64_t channels)
      : shape_(shape), x_(x), block_(block), channels_(channels) {}

  void copy(const Range& range, float* to, int64_t stride) override {
    const int64_t tap = range.first_col / block_ % shape_.taps();
    const int64_t positions = shape_.positions(), out_width = shape_.out_width();
    const int64_t end = range.first_row + range.rows;
    hold((end - 1) / positions - range.first_row / positions + 1);
    for (int64_t row = range.first_row; row < end;) {
      const int64_t image = row / positions, position = row % positions;
      const int64_t p = position / out_width, q = position % out_width;
      const int64_t run = std::min(out_width - q, end - row);
      copy_run(pixels_of(image), tap, p, q, run, to, stride);
      to += run * stride;
      row += run;
    }
  }

 private:
  int64_t pixels() const { return shape_.height * shape_.width; }

  // Makes room for `images` transposed images at a time.
  void hold(int64_t images) {
    if (images <= static_cast<int64_t>(held_.size())) return;
    held_.assign(static_cast<size_t>(images), -1);
    memory().reserve(static_cast<size_t>(images * pixels() * block_));
    if (channels_ < block_) std::fill_n(memory().data(), images * pixels() * block_, 0.0f);
  }

  // [pixels, block] of an image.
  const float* pixels_of(int64_t image) {
    const auto slot = static_cast<size_t>(image) % held_.size();
    float* to = memory().data() + static_cast<int64_t>(slot) * pixels() * block_;
    if (held_[slot] == image) return to;
    held_[slot] = image;
    transpose({x_ + image * shape_.ins * pixels(), pixels(), channels_, pixels(), to, block_});
    return to;
  }

  // What a tap sees at outputs [q, q + count) of row p.
  void copy_run(const float* pixels, int64_t tap, int64_t p, int64_t q, int64_t count, float* to,
                int64_t stride) const {
    const ConvShape& s = shape_;
    const auto bytes = static_cast<size_t>(block_) * sizeof(float);
    const int64_t y = p * s.stride_h + tap / s.kernel_w * s.dilation_h - s.pad_h;
    const bool inside = y >= 0 && y < s.height;
    int64_t x = q * s.stride_w + tap % s.kernel_w * s.dilation_w - s.pad_w;
    for (int64_t i = 0; i < count; ++i, x += s.stride_w, to += stride) {
      if (inside && x >= 0 && x < s.width) {
        std::memcpy(to, pixels + (y * s.width + x) * block_, bytes);
      } else {
        std::memset(to, 0, bytes);
      }
    }
  }

  static AlignedBuffer<float>& memory() {
    thread_local AlignedBuffer<float> images;  // [held, pixels, block]
    return images;
  }

  const ConvShape& shape_;
  const float* x_;  // the first channel of the block
  int64_t block_;
  int64_t channels_;           // of the block: fewer in the last one
  std::vector<int64_t> held_;  // the image in each slot of the memory
};

}  // namespace

std::unique_ptr<BandReader> ImageRowsSource::band(int64_t first_col, int64_t) const {
  const int64_t first = first_col / shape_.taps();  // channel, in the group
  const int64_t channel = group_ * shape_.group_ins() + first;
  return std::make_unique<ImageRowsReader>(shape_, x_ + channel * shape_.height * shape_.width,
                                           block_, std::min(block_, shape_.group_ins() - first));
}

}  // namespace weft
