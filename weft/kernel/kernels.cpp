#include "weft/kernel/kernels.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/kernel/dense.h"
#include "weft/kernel/sparse.h"

namespace weft {
namespace {

constexpr std::array kForwardOnly = {Product::kForward};
constexpr std::array kBackwardWeightOnly = {Product::kBackwardWeight};

bool takes_panels(const LinearCall& call) {
  return !call.kept && call.packed && call.packed->layout() == PackLayout::kPanel;
}
bool takes_stream(const LinearCall& call) {
  return !call.kept && call.packed && call.packed->layout() == PackLayout::kStream;
}
bool takes_kept(const LinearCall& call) { return call.kept && !call.packed; }
bool takes_dense(const LinearCall& call) { return !call.kept && !call.packed; }

void run_sparse(const LinearCall& c) {
  switch (c.product) {
    case Product::kForward:
      return sparse_forward(c.activations, *c.packed, c.bias, c.beta, c.result);
    case Product::kBackwardData:
      return sparse_backward_data(c.activations, *c.packed, c.beta, c.result);
    case Product::kBackwardWeight:
      return sparse_backward_weight(*c.packed, c.activations, c.beta, c.result);
  }
}

void run_masked(const LinearCall& c) {
  masked_backward_weight(c.dense, c.activations, *c.kept, c.beta, c.result);
}

void run_dense(const LinearCall& c) {
  switch (c.product) {
    case Product::kForward: return dense_forward(c.activations, c.dense, c.bias, c.beta, c.result);
    case Product::kBackwardData:
      return dense_backward_data(c.activations, c.dense, c.beta, c.result);
    case Product::kBackwardWeight:
      return dense_backward_weight(c.dense, c.activations, c.beta, c.result);
  }
}

constexpr std::array kKernels = {
    Kernel{"panel", Compute::kFp32, "panel pack", kProducts, "sparse products of many tokens",
           takes_panels, run_sparse},
    Kernel{"stream", Compute::kFp32, "stream pack", kForwardOnly, "inference with 1 to 16 tokens",
           takes_stream, run_sparse},
    Kernel{"masked", Compute::kFp32, "dense matrix", kBackwardWeightOnly,
           "gradients of weights, where a mask keeps them", takes_kept, run_masked},
    Kernel{"dense", Compute::kFp32, "dense matrix", kProducts, "oneDNN, where dense is faster",
           takes_dense, run_dense},
};

}  // namespace

std::string_view product_name(Product product) {
  switch (product) {
    case Product::kForward: return "fwd";
    case Product::kBackwardData: return "bwd_x";
    case Product::kBackwardWeight: return "bwd_w";
  }
  return "";
}

std::string_view compute_name(Compute compute) { return compute == Compute::kFp32 ? "fp32" : ""; }

std::span<const Kernel> kernels() { return kKernels; }

const Kernel& kernel_for(const LinearCall& call, Compute compute) {
  for (const Kernel& kernel : kKernels) {
    const bool computes = std::find(kernel.products.begin(), kernel.products.end(), call.product) !=
                          kernel.products.end();
    if (kernel.compute == compute && computes && kernel.takes(call)) return kernel;
  }
  throw Error(fmt::format("no kernel computes {} in {} from a {}", product_name(call.product),
                          compute_name(compute),
                          call.packed ? "matrix packed like this" : "dense matrix") +
              (call.kept ? ", some entries only" : ""));
}

void multiply(const LinearCall& call, Compute compute) {
  WEFT_CHECK(call.bias == nullptr || call.product == Product::kForward,
             "a bias belongs to the forward product, not to {}", product_name(call.product));
  kernel_for(call, compute).run(call);
}

}  // namespace weft
