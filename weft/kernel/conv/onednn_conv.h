// A convolution in pieces, each a primitive of oneDNN on one thread. Only for dense_conv.cpp, which
// checks the arguments and does the cutting.
#pragma once

#include <vector>

#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/product.h"

namespace weft::onednn {

// What the caller gave, whole. The result is y, x or w, as the product says; that one is null here.
struct ConvTensors {
  Product product;
  const float* x;
  const float* w;
  const float* y;
  const float* bias;  // forward only, or null
  float* result;
  bool accumulate;  // beta is 1
};

// A part of a convolution that is a convolution itself: for dw some output channels and the input
// channels that they see, else some images.
struct ConvPiece {
  ConvShape shape;
  int64_t x_channels, y_channels;  // of the whole tensor: the stride between images
  int64_t x = 0, w = 0, y = 0;     // where it begins in the whole, in elements
};

// Runs all pieces; no two of them write to the same place. same_operand: the operand that is not
// cut, x for dw and else w, is the same and whole in all of them, and is copied only once.
void run_conv(const ConvTensors& call, const std::vector<ConvPiece>& pieces, bool same_operand);

}  // namespace weft::onednn
