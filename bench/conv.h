// The sparse products of convolutions against the dense ones, which are oneDNN's (conv/dense_conv.h).
//
// In every round the dense and the sparse product run, in one order and then in the other, so that a
// noisy machine hits them alike. Figures are medians over the rounds; the spread is that of the
// ratios within rounds. Before anything is timed, both results are compared: a difference is an Error
// and no figure. Packing has its own figure.
#pragma once

#include <functional>
#include <vector>

#include "bench/spread.h"
#include "weft/core/pattern.h"
#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/product.h"

namespace weft::bench {

struct ConvOptions {
  std::vector<ConvShape> shapes;
  std::vector<Pattern> patterns;
  std::vector<ProductForm> forms;  // of kPackedForms
  int rounds = 5;
};

struct ConvRecord {
  ProductForm form;
  Pattern pattern;
  ConvShape shape;
  double dense_ms = 0;
  double sparse_ms = 0;
  Spread ratio = {};  // dense / sparse; the median is that of the medians
  double pack_ms = 0;
  double peak_gflops = 0;

  double dense_gflops() const { return shape.flops() / dense_ms * 1e-6; }
  double effective_gflops() const { return shape.flops() / sparse_ms * 1e-6; }
};

std::vector<ConvRecord> bench_conv(const ConvOptions& options,
                                   const std::function<void(double fraction)>& progress);

}  // namespace weft::bench
