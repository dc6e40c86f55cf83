// The table of kernels: every way to compute a product of a layer. A caller fills in a call and
// multiplies it; the operand's format chooses the row. Layers, the planner, benchmarks,
// tests and `weft kernels` read this table and call no kernel by its name.
//
//   forward          y  = x Wᵀ + bias + beta·y     activations: x      operand: W
//   backward data    dx = g W         + beta·dx    activations: g      operand: W  (packed: Wᵀ)
//   backward weight  dw = gᵀ x        + beta·dw    activations: x      operand: g  (packed: gᵀ)
//                    or only the entries of dw that a mask keeps
//
// A convolution has the same three products, on tensors (conv/conv_shape.h). Attention is not
// one of these products and is not in the table (attention/attention.h).
//
// All memory is the caller's; the result must not overlap an operand. beta is 0 (the result is not
// read) or 1. The result does not depend on the number of threads.
#pragma once

#include <span>
#include <string_view>
#include <variant>

#include "weft/core/bf16.h"
#include "weft/core/matrix_view.h"
#include "weft/core/precision.h"
#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/conv/pack_conv.h"
#include "weft/kernel/masked/kept_entries.h"
#include "weft/kernel/product.h"
#include "weft/pack/dense_tiles.h"
#include "weft/pack/packed_matrix.h"

namespace weft {

// Numbers of either type: matrices, row-major, and tensors, without gaps.
using AnyMatrix = std::variant<MatrixView<const float>, MatrixView<const Bf16>>;
using AnyResult = std::variant<MatrixView<float>, MatrixView<Bf16>>;
using AnyTensor = std::variant<const float*, const Bf16*>;
using AnyTensorResult = std::variant<float*, Bf16*>;

// One product of a linear layer. The operand is dense or packed. The result has the type of the
// activations; the gradient of weights is fp32 always.
struct LinearCall {
  Product product = Product::kForward;
  AnyMatrix activations;
  const PackedMatrix* packed = nullptr;  // null: the operand is dense
  const DenseTiles* tiles = nullptr;     // dense, and packed for a tile unit; null: it is not
  AnyMatrix dense;
  const KeptEntries* kept = nullptr;  // backward weight from dense operands: only these entries
  const float* bias = nullptr;        // forward only: [outs]
  float beta = 0.0f;                  // 0 or 1
  AnyResult result;
};

// The same of a convolution.
struct ConvCall {
  Product product = Product::kForward;
  ConvShape shape;
  AnyTensor activations;
  const PackedConv* packed = nullptr;  // null: the operand is dense
  AnyTensor dense;
  const KeptEntries* kept = nullptr;  // backward weight from dense operands: only these entries
  const float* bias = nullptr;        // forward only: [outs]
  float beta = 0.0f;                  // 0 or 1
  AnyTensorResult result;
};

using ProductCall = std::variant<LinearCall, ConvCall>;

struct Kernel {
  std::string_view name;
  std::string_view layer;  // "linear" or "conv": which calls it takes, for people
  // The arithmetic. In fp32 it takes operands that are kept in fp32 or in bf16; in bf16, on a tile
  // unit (tile_unit.h), only the latter. Sums are fp32 in either.
  Precision compute;
  std::string_view operand;           // what it takes, for people
  std::span<const Product> products;  // that it can compute
  std::string_view use;               // what it is for
  bool (*takes)(const ProductCall& call);
  void (*run)(const ProductCall& call);
};

std::span<const Kernel> kernels();

// The kernel for a call: the operand's format chooses it. Throws Error if there is none.
const Kernel& kernel_for(const ProductCall& call, Precision compute = Precision::kFp32);

void multiply(const ProductCall& call, Precision compute = Precision::kFp32);

}  // namespace weft
