#include "weft/kernel/kernels.h"

#include <algorithm>
#include <array>

#include "weft/core/error.h"
#include "weft/kernel/conv/dense_conv.h"
#include "weft/kernel/conv/masked_conv.h"
#include "weft/kernel/conv/sparse_conv.h"
#include "weft/kernel/dense/dense.h"
#include "weft/kernel/masked/masked_weight.h"
#include "weft/kernel/panel/panel.h"
#include "weft/kernel/stream/stream.h"
#include "weft/kernel/tile/tile.h"

namespace weft {
namespace {

constexpr std::array kForwardOnly = {Product::kForward};
constexpr std::array kBackwardWeightOnly = {Product::kBackwardWeight};

// ---- what a call has

template <typename Operand, typename Result, typename Gradient, typename Call>
bool holds(const Call& call, bool dense) {
  return std::holds_alternative<Operand>(call.activations) &&
         (!dense || std::holds_alternative<Operand>(call.dense)) &&
         (call.product == Product::kBackwardWeight ? std::holds_alternative<Gradient>(call.result)
                                                   : std::holds_alternative<Result>(call.result));
}

// Whether all numbers of a call are of type T, but for the gradient of weights.
template <typename T>
bool has_only(const LinearCall& call) {
  return holds<MatrixView<const T>, MatrixView<T>, MatrixView<float>>(
      call, call.packed == nullptr && call.tiles == nullptr);
}
template <typename T>
bool has_only(const ConvCall& call) {
  return holds<const T*, T*, float*>(call, call.packed == nullptr);
}
template <typename Call>
bool has_one_type(const Call& call) {
  return has_only<float>(call) || has_only<Bf16>(call);
}

// Calls run(T()) with the type of the numbers of a call.
template <typename Call, typename Run>
void with_type(const Call& call, Run run) {
  has_only<float>(call) ? run(float()) : run(Bf16());
}

// ---- linear layers

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

void run_panels(const LinearCall& c) {
  with_type(c, [&]<typename T>(T) {
    const auto activations = std::get<MatrixView<const T>>(c.activations);
    switch (c.product) {
      case Product::kForward:
        return panel_forward(activations, *c.packed, c.bias, c.beta,
                             std::get<MatrixView<T>>(c.result));
      case Product::kBackwardData:
        return panel_backward_data(activations, *c.packed, c.beta,
                                   std::get<MatrixView<T>>(c.result));
      case Product::kBackwardWeight:
        return panel_backward_weight(*c.packed, activations, c.beta,
                                     std::get<MatrixView<float>>(c.result));
    }
  });
}

void run_stream(const LinearCall& c) {
  with_type(c, [&]<typename T>(T) {
    stream_forward(std::get<MatrixView<const T>>(c.activations), *c.packed, c.bias, c.beta,
                   std::get<MatrixView<T>>(c.result));
  });
}

void run_tiles(const LinearCall& c) {
  const auto activations = std::get<MatrixView<const Bf16>>(c.activations);
  switch (c.product) {
    case Product::kForward:
      return tile_forward(activations, *c.packed, c.bias, c.beta,
                          std::get<MatrixView<Bf16>>(c.result));
    case Product::kBackwardData:
      return tile_backward_data(activations, *c.packed, c.beta,
                                std::get<MatrixView<Bf16>>(c.result));
    case Product::kBackwardWeight:
      return tile_backward_weight(*c.packed, activations, c.beta,
                                  std::get<MatrixView<float>>(c.result));
  }
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
      return dense_tile_forward(activations, *c.tiles, c.bias, c.beta,
                                std::get<MatrixView<Bf16>>(c.result));
    case Product::kBackwardData:
      return dense_tile_backward_data(activations, *c.tiles, c.beta,
                                      std::get<MatrixView<Bf16>>(c.result));
    case Product::kBackwardWeight:
      return dense_tile_backward_weight(std::get<MatrixView<const Bf16>>(c.dense), activations,
                                        c.beta, std::get<MatrixView<float>>(c.result));
  }
}

// ---- convolutions

bool takes_conv_panels(const ConvCall& call) {
  return call.packed && !call.kept && has_one_type(call) &&
         std::all_of(call.packed->begin(), call.packed->end(),
                     [](const PackedMatrix& one) { return one.layout() == PackLayout::kPanel; });
}
bool takes_kept_conv(const ConvCall& call) {
  return call.kept && !call.packed && has_one_type(call);
}
bool takes_dense_conv(const ConvCall& call) {
  return !call.kept && !call.packed && has_one_type(call);
}

void run_conv_panels(const ConvCall& c) {
  with_type(c, [&]<typename T>(T) {
    const T* activations = std::get<const T*>(c.activations);
    switch (c.product) {
      case Product::kForward:
        return sparse_conv_forward(c.shape, activations, *c.packed, c.bias, c.beta,
                                   std::get<T*>(c.result));
      case Product::kBackwardData:
        return sparse_conv_backward_data(c.shape, activations, *c.packed, c.beta,
                                         std::get<T*>(c.result));
      case Product::kBackwardWeight:
        return sparse_conv_backward_weight(c.shape, *c.packed, activations, c.beta,
                                           std::get<float*>(c.result));
    }
  });
}

void run_masked_conv(const ConvCall& c) {
  with_type(c, [&]<typename T>(T) {
    masked_conv_backward_weight(c.shape, std::get<const T*>(c.dense),
                                std::get<const T*>(c.activations), *c.kept, c.beta,
                                std::get<float*>(c.result));
  });
}

void run_dense_conv(const ConvCall& c) {
  with_type(c, [&]<typename T>(T) {
    const T *activations = std::get<const T*>(c.activations), *dense = std::get<const T*>(c.dense);
    switch (c.product) {
      case Product::kForward:
        return dense_conv_forward(c.shape, activations, dense, c.bias, c.beta,
                                  std::get<T*>(c.result));
      case Product::kBackwardData:
        return dense_conv_backward_data(c.shape, activations, dense, c.beta,
                                        std::get<T*>(c.result));
      case Product::kBackwardWeight:
        return dense_conv_backward_weight(c.shape, dense, activations, c.beta,
                                          std::get<float*>(c.result));
    }
  });
}

// ---- the table

// The call as what a function of a row takes; null if it is of the other kind of layer.
template <typename Call, typename Result>
const Call* call_for(Result (*)(const Call&), const ProductCall& call) {
  return std::get_if<Call>(&call);
}
template <auto kTakes>
bool if_taken(const ProductCall& call) {
  const auto* one = call_for(kTakes, call);
  return one != nullptr && kTakes(*one);
}
template <auto kRun>
void with_call(const ProductCall& call) {
  kRun(*call_for(kRun, call));
}

constexpr std::array kKernels = {
    Kernel{"panel", "linear", Precision::kFp32, "panel pack", kProducts,
           "sparse products of many tokens", if_taken<takes_panels>, with_call<run_panels>},
    Kernel{"stream", "linear", Precision::kFp32, "stream pack", kForwardOnly,
           "inference with 1 to 16 tokens", if_taken<takes_stream>, with_call<run_stream>},
    Kernel{"masked", "linear", Precision::kFp32, "dense matrix", kBackwardWeightOnly,
           "gradients of kept weights", if_taken<takes_kept>, with_call<run_masked>},
    Kernel{"dense", "linear", Precision::kFp32, "dense matrix", kProducts,
           "oneDNN or a loop for few tokens, where dense is faster", if_taken<takes_dense>,
           with_call<run_dense>},
    Kernel{"tile", "linear", Precision::kBf16, "tile pack", kProducts,
           "patterns shared by 16 or 32 rows, on a tile unit", if_taken<takes_tiles>,
           with_call<run_tiles>},
    Kernel{"dense tile", "linear", Precision::kBf16, "dense tiles", kProducts,
           "a tile unit, where dense is faster", if_taken<takes_dense_tiles>,
           with_call<run_dense_tiles>},
    Kernel{"conv panel", "conv", Precision::kFp32, "panel packs", kProducts, "sparse convolutions",
           if_taken<takes_conv_panels>, with_call<run_conv_panels>},
    Kernel{"conv masked", "conv", Precision::kFp32, "dense tensor", kBackwardWeightOnly,
           "gradients of kept weights", if_taken<takes_kept_conv>, with_call<run_masked_conv>},
    Kernel{"conv dense", "conv", Precision::kFp32, "dense tensor", kProducts,
           "oneDNN, where dense is faster", if_taken<takes_dense_conv>, with_call<run_dense_conv>},
};

std::string operand_text(const LinearCall& call) {
  const std::string text = call.packed
                               ? fmt::format("a {} pack", layout_name(call.packed->layout()))
                           : call.tiles ? "dense tiles"
                                        : "a dense matrix";
  return text + (call.kept ? ", some entries only" : "");
}
std::string operand_text(const ConvCall& call) {
  return std::string(call.packed ? "packed matrices" : "a dense tensor") +
         (call.kept ? ", some entries only" : "");
}

}  // namespace

std::span<const Kernel> kernels() { return kKernels; }

const Kernel& kernel_for(const ProductCall& call, Precision compute) {
  const Product product = std::visit([](const auto& one) { return one.product; }, call);
  for (const Kernel& kernel : kKernels) {
    const bool computes =
        std::find(kernel.products.begin(), kernel.products.end(), product) != kernel.products.end();
    if (kernel.compute == compute && computes && kernel.takes(call)) return kernel;
  }
  throw Error(std::visit(
      [&](const auto& one) {
        return fmt::format("no kernel computes {} in {} from {} activations and {}",
                           product_name(product), precision_name(compute),
                           one.activations.index() == 0 ? "fp32" : "bf16", operand_text(one));
      },
      call));
}

void multiply(const ProductCall& call, Precision compute) {
  std::visit(
      [](const auto& one) {
        WEFT_CHECK(one.bias == nullptr || one.product == Product::kForward,
                   "a bias belongs to the forward product, not to {}", product_name(one.product));
      },
      call);
  kernel_for(call, compute).run(call);
}

}  // namespace weft
