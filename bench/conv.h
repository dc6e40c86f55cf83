// The sparse products of convolutions against the best dense one on the same machine.
//
// For every shape and number of threads, the fastest dense peer (conv_peers.h) is found first. Then,
// in every round, it and the sparse product run, in one order and then in the other, so that a
// noisy machine hits them alike. Figures are medians over the rounds; the spread is that of the
// ratios within rounds. Before anything is timed, the sparse result is compared with weft's dense
// one: a difference is an Error and no figure.
//
// What a training step pays besides has its own figure: packing of weights, sampling and packing of
// gradients, or, only after their mask has changed, finding the kept entries. A plan keeps a product dense if it does not pay with that counted in.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/spread.h"
#include "weft/core/pattern.h"
#include "weft/kernel/conv/conv_shape.h"
#include "weft/kernel/product.h"

namespace weft::bench {

// The distinct convolutions of a ResNet-50 at 224 x 224 without the stem, each once, and those of a
// CIFAR ResNet (widths 16, 32, 64), all for 16 images.
const std::vector<std::string>& resnet50_convolutions();
const std::vector<std::string>& cifar_convolutions();

struct ConvOptions {
  std::vector<ConvShape> shapes;
  std::vector<Pattern> patterns;
  std::vector<ProductForm> forms;
  std::vector<int> threads;
  int rounds = 5;
};

struct ConvRecord {
  ProductForm form;
  Pattern pattern;
  ConvShape shape;
  int threads = 1;
  std::string dense_peer = {};
  double dense_ms = 0;
  double sparse_ms = 0;
  Spread ratio = {};   // dense / sparse; the median is that of the medians
  double pack_ms = 0;  // of weights; of a gradient: sampling and packing; or of kept entries
  double peak_gflops = 0;

  double dense_gflops() const { return shape.flops() / dense_ms * 1e-6; }
  double effective_gflops() const { return shape.flops() / sparse_ms * 1e-6; }
  bool disturbed() const { return dense_gflops() < 0.5 * peak_gflops; }
  // Entries that are kept are found once for a mask, not in every step.
  bool pays() const { return sparse_ms + (form.masked ? 0 : pack_ms) < dense_ms; }
};

std::vector<ConvRecord> bench_conv(const ConvOptions& options,
                                   const std::function<void(double fraction)>& progress);

}  // namespace weft::bench
