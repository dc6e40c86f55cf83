// The sparse products against the best dense product of the same numbers on the same machine.
//
// For every shape and number of threads, the fastest dense peer (peers.h) is found first. Then, in
// every round, it runs once and so does every sparse product, in one order and then in the other,
// so that a noisy machine hits them alike. With few tokens the caches are emptied before each run:
// weights come from memory, in both. Figures are medians over the rounds; the spread is that of the
// ratios within rounds. Before anything is timed, the sparse result is checked against the dense
// product of the masked operand: a wrong result is an Error and no figure.
//
// A sparse time has everything that happens per call, copying of the dense operand included.
// Packing and finding the mask have their own figures: who packs once per step pays them once per
// step.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/spread.h"
#include "weft/kernel/planner.h"

namespace weft::bench {

struct GemmPlan {
  std::vector<LayerShape> shapes;
  std::vector<Pattern> patterns;
  std::vector<ProductKind> kinds = {kProductKinds.begin(), kProductKinds.end()};
  std::vector<int> threads;
  int rounds = 5;
};

struct GemmRecord {
  ProductKind kind;
  Pattern pattern;
  LayerShape shape;
  int threads;
  ValueType values;
  PackLayout layout;
  std::string dense_peer;
  double dense_ms;
  double sparse_ms;
  Spread ratio;  // dense / sparse; the median is that of the medians
  double pack_ms;
  double mask_ms;
  double peak_gflops;
  std::optional<Choice> plan;  // of the planner, packing counted in; it knows panels only
  std::optional<double> dense_bf16_ms;

  double dense_gflops() const { return shape.flops() / dense_ms * 1e-6; }
  double effective_gflops() const { return shape.flops() / sparse_ms * 1e-6; }
  double real_gflops() const { return effective_gflops() * pattern.keep() / pattern.group(); }
  // The dense peer did not reach what it can, so something else used the machine. Means nothing
  // where memory is the bound, or the product is too small to reach the peak.
  bool disturbed() const {
    constexpr double kLargeEnough = 1e9;  // flops
    return shape.tokens > 16 && shape.flops() >= kLargeEnough && dense_gflops() < 0.8 * peak_gflops;
  }
};

std::vector<GemmRecord> bench_gemm(const GemmPlan& plan,
                                   const std::function<void(double fraction)>& progress);

}  // namespace weft::bench
