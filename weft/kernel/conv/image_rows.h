// The inputs of a convolution as the dense operand of backward-weight: a row of B for every output
// position, a column for every tap and channel.
//
//   B [images * positions, blocks * taps * width]     blocks of `width` channels
//   row (image, p, q), column (block, tap, i): the input of channel block * width + i that the tap
//   sees at that position; 0 in the padding and behind the last channel
//
// The taps of a block are one band: the block of an image is transposed to [pixels, width] once,
// and what a tap sees of it are runs of pixels.
#pragma once

#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/panel/panel_product.h"

namespace weft {

class ImageRowsSource : public PanelSource {
 public:
  // x: [images, ins, height, width]; block: columns of a stripe, which are channels.
  ImageRowsSource(const ConvShape& shape, const float* x, int64_t group, int64_t block)
      : shape_(shape), x_(x), group_(group), block_(block) {}

  int64_t cols() const {
    return (shape_.group_ins() + block_ - 1) / block_ * shape_.taps() * block_;
  }
  std::unique_ptr<BandReader> band(int64_t first_col, int64_t cols) const override;
  int64_t stripes_per_band() const override { return shape_.taps(); }
  int64_t depth_at_once() const override { return 1; }  // one panel, which then is in L1

 private:
  ConvShape shape_;
  const float* x_;
  int64_t group_;
  int64_t block_;
};

}  // namespace weft
