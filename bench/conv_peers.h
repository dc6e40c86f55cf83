// The dense convolutions that a sparse one is measured against, on the threads and the instruction
// set that weft runs on.
//
//   oneDNN          with its own threads, from and to NCHW: its copies to other layouts count
//   oneDNN, blocked with activations in the layout that it likes best, before and after, as in a
//                   network that never leaves oneDNN: only the copy of weights counts, which
//                   change with every step
//   weft            weft's own dense path (kernel/conv/dense_conv.h)
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/product.h"

namespace weft::bench {

struct ConvPeer {
  std::string name;
  std::function<void()> run;
};

// The tensors of one product, which must outlive the peers:
//
//   forward          activations = x   operand = w   result = y
//   backward data    activations = g   operand = w   result = dx
//   backward weight  activations = x   operand = g   result = dw
struct ConvOperands {
  Product product = Product::kForward;
  ConvShape shape;
  const float* activations = nullptr;
  const float* operand = nullptr;
  float* result = nullptr;
};

// oneDNN's; made for the number of threads that is set now. The blocked one leaves no result.
std::vector<ConvPeer> onednn_convolutions(const ConvOperands& operands);

}  // namespace weft::bench
