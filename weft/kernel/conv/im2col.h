// A convolution as a product: every output position is a column, every weight of a filter a row.
//
//   columns [taps * channels, images * positions]
//   row tap * channels + channel, column image * positions + y * out_width + x:
//     the input of that channel that the tap sees at that position; zero in the padding
//
// Taps are the outer index, so that the channels of a tap follow each other, as in a pack of the
// weights in tap-major order.
#pragma once

#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/panel/panel_product.h"

namespace weft {

// Rows of one group of channels of x [images, ins, height, width]: never made as a whole, a stripe
// at a time.
class Im2colSource : public PanelSource {
 public:
  Im2colSource(const ConvShape& shape, const float* x, int64_t group)
      : shape_(shape), x_(x), group_(group) {}
  void copy(const Range& range, float* to, int64_t stride) const override;

 private:
  ConvShape shape_;
  const float* x_;
  int64_t group_;
};

// The same, transposed: [images * positions, taps * channels].
class Im2rowSource : public PanelSource {
 public:
  Im2rowSource(const ConvShape& shape, const float* x, int64_t group) : columns_(shape, x, group) {}
  void copy(const Range& range, float* to, int64_t stride) const override;

 private:
  Im2colSource columns_;
};

// Adds columns [taps, positions] of one channel of one image back to where they came from.
// plane: [height, width]; tap t of `columns` at columns + t * tap_stride.
void add_columns(const ConvShape& shape, const float* columns, int64_t tap_stride, float* plane);

}  // namespace weft
