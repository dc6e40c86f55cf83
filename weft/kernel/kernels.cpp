#include "weft/kernel/kernels.h"

#include <algorithm>
#include <array>

#include "weft/core/error.h"
#include "weft/kernel/dense/dense.h"
#include "weft/kernel/sparse.h"

namespace weft {
namespace {

constexpr std::array kForwardOnly = {Product::kForward};
constexpr std::array kBackwardWeightOnly = {Product::kBackwardWeight};

// Whether all numbers of a call are of type T, but for the gradient of weights.
template <typename T>
bool has_only(const LinearCall& call) {
  const bool from_dense = call.packed == nullptr && call.tiles == nullptr;
  const bool weight = call.product == Product::kBackwardWeight;
  return std::holds_alternative<MatrixView<const T>>(call.activations) &&
         (!from_dense || std::holds_alternative<MatrixView<const T>>(call.dense)) &&
         (weight ? std::holds_alternative<MatrixView<float>>(call.result)
                 : std::holds_alternative<MatrixView<T>>(call.result));
}
bool has_one_type(const LinearCall& call) { return has_only<float>(call) || has_only<Bf16>(call); }

bool takes_packed(const LinearCall& call, PackLayout layout) {
  return !call.kept && !call.tiles && call.packed && call.packed->layout() == layout;
}
bool takes_panels(const LinearCall& call) {
  return takes_packed(call, PackLayout::kPanel) && has_one_type(call);
}
bool takes_stream(const LinearCall& call) {
  return takes_packed(call, PackLayout::kStream) && has_one_type(call);
}
bool takes_tiles(const LinearCall& call) {
  return takes_packed(call, PackLayout::kTile) && has_only<Bf16>(call);
}
bool takes_kept(const LinearCall& call) {
  return call.kept && !call.packed && !call.tiles && has_one_type(call);
}
bool takes_dense(const LinearCall& call) {
  return !call.kept && !call.packed && !call.tiles && has_one_type(call);
}
// Weights packed beforehand; a gradient is packed in the call.
bool takes_dense_tiles(const LinearCall& call) {
  const bool weight = call.product == Product::kBackwardWeight;
  return !call.kept && !call.packed && (call.tiles == nullptr) == weight && has_only<Bf16>(call);
}

// Calls run(T()) with the type of the numbers of a call.
template <typename Run>
void with_type(const LinearCall& call, Run run) {
  has_only<float>(call) ? run(float()) : run(Bf16());
}

void run_sparse(const LinearCall& c) {
  with_type(c, [&]<typename T>(T) {
    const auto activations = std::get<MatrixView<const T>>(c.activations);
    switch (c.product) {
      case Product::kForward:
        return sparse_forward(activations, *c.packed, c.bias, c.beta,
                              std::get<MatrixView<T>>(c.result));
      case Product::kBackwardData:
        return sparse_backward_data(activations, *c.packed, c.beta,
                                    std::get<MatrixView<T>>(c.result));
      case Product::kBackwardWeight:
        return sparse_backward_weight(*c.packed, activations, c.beta,
                                      std::get<MatrixView<float>>(c.result));
    }
  });
}

void run_masked(const LinearCall& c) {
  with_type(c, [&]<typename T>(T) {
    masked_backward_weight(std::get<MatrixView<const T>>(c.dense),
                           std::get<MatrixView<const T>>(c.activations), *c.kept, c.beta,
                           std::get<MatrixView<float>>(c.result));
  });
}

void run_dense(const LinearCall& c) {
  with_type(c, [&]<typename T>(T) {
    const auto activations = std::get<MatrixView<const T>>(c.activations);
    const auto dense = std::get<MatrixView<const T>>(c.dense);
    switch (c.product) {
      case Product::kForward:
        return dense_forward(activations, dense, c.bias, c.beta, std::get<MatrixView<T>>(c.result));
      case Product::kBackwardData:
        return dense_backward_data(activations, dense, c.beta, std::get<MatrixView<T>>(c.result));
      case Product::kBackwardWeight:
        return dense_backward_weight(dense, activations, c.beta,
                                     std::get<MatrixView<float>>(c.result));
    }
  });
}

void run_dense_tiles(const LinearCall& c) {
  const auto activations = std::get<MatrixView<const Bf16>>(c.activations);
  switch (c.product) {
    case Product::kForward:
      return dense_forward(activations, *c.tiles, c.bias, c.beta,
                           std::get<MatrixView<Bf16>>(c.result));
    case Product::kBackwardData:
      return dense_backward_data(activations, *c.tiles, c.beta,
                                 std::get<MatrixView<Bf16>>(c.result));
    case Product::kBackwardWeight:
      return dense_backward_weight_on_tiles(std::get<MatrixView<const Bf16>>(c.dense), activations,
                                            c.beta, std::get<MatrixView<float>>(c.result));
  }
}

constexpr std::array kKernels = {
    Kernel{"panel", Precision::kFp32, "panel pack", kProducts, "sparse products of many tokens",
           takes_panels, run_sparse},
    Kernel{"stream", Precision::kFp32, "stream pack", kForwardOnly, "inference with 1 to 16 tokens",
           takes_stream, run_sparse},
    Kernel{"masked", Precision::kFp32, "dense matrix", kBackwardWeightOnly,
           "gradients of weights, where a mask keeps them", takes_kept, run_masked},
    Kernel{"dense", Precision::kFp32, "dense matrix", kProducts,
           "oneDNN or a loop for few tokens, where dense is faster", takes_dense, run_dense},
    Kernel{"tile", Precision::kBf16, "tile pack", kProducts,
           "patterns shared by 16 or 32 rows, on a tile unit", takes_tiles, run_sparse},
    Kernel{"dense tile", Precision::kBf16, "dense tiles", kProducts,
           "a tile unit, where dense is faster", takes_dense_tiles, run_dense_tiles},
};

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

const Kernel& kernel_for(const LinearCall& call, Precision compute) {
  for (const Kernel& kernel : kKernels) {
    const bool computes = std::find(kernel.products.begin(), kernel.products.end(), call.product) !=
                          kernel.products.end();
    if (kernel.compute == compute && computes && kernel.takes(call)) return kernel;
  }
  throw Error(fmt::format("no kernel computes {} in {} from a {}", product_name(call.product),
                          precision_name(compute),
                          call.packed || call.tiles ? "matrix packed like this" : "dense matrix") +
              (call.kept ? ", some entries only" : ""));
}

void multiply(const LinearCall& call, Precision compute) {
  WEFT_CHECK(call.bias == nullptr || call.product == Product::kForward,
             "a bias belongs to the forward product, not to {}", product_name(call.product));
  kernel_for(call, compute).run(call);
}

}  // namespace weft
