// The sparse products against the best dense product of the same numbers on the same machine.
//
// For every shape and number of threads, the fastest dense peer (peers.h) is found first. Then, in
// every round, it runs once and so does every sparse product, in one order and then in the other,
// so that a noisy machine hits them alike. With few tokens the caches are emptied before each run:
// weights come from memory, in both. Figures are medians over the rounds; the spread is that of the
// ratios within rounds. Before anything is timed, the sparse result is checked against the dense
// product of the masked operand: a wrong result is an Error and no figure.
//
// In bf16 operands and results of either path are kept in bf16. The dense peers are weft's, in
// every arithmetic that the CPU has (timings.h), and oneDNN's where it has one, its operands
// reordered beforehand. A masked gradient is masked after the dense product, too; the time of
// masking counts as dense. The fastest fp32 product of the same shape is reported beside it. On
// tiles the dense gradient of weights has its left operand transposed beforehand, as the sparse one
// has it packed.
//
// A sparse time has everything that happens per call, copying of the dense operand included.
// Packing and finding the mask have their own figures: a caller that packs once per step pays them
// once per step.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "bench/spread.h"
#include "weft/kernel/stream/stream.h"
#include "weft/plan/planner.h"

namespace weft::bench {

struct GemmOptions {
  std::vector<LayerShape> shapes;
  std::vector<Pattern> patterns;
  std::vector<ProductForm> forms = {kProductForms.begin(), kProductForms.end()};
  std::vector<int> threads;
  int rounds = 5;
  Precision precision = Precision::kFp32;
};

struct GemmRecord {
  ProductForm form;
  Pattern pattern;
  LayerShape shape;
  int threads;
  Precision values;       // of the sparse operand
  Arithmetic arithmetic;  // of the sparse product
  std::string dense_peer = {};
  double dense_ms = 0;
  double sparse_ms = 0;
  Spread ratio = {};  // dense / sparse; the median is that of the medians
  double pack_ms = 0;
  double mask_ms = 0;
  double peak_gflops = 0;                    // of the tile unit, in bf16 on a CPU that has one
  std::optional<ProductPlan> plan = {};      // packing counted in, unless tokens are few
  std::optional<double> dense_bf16_ms = {};  // in fp32 only: the best bf16 product beside
  std::optional<double> dense_fp32_ms = {};  // in bf16 only: the best fp32 product beside

  double dense_gflops() const { return shape.flops() / dense_ms * 1e-6; }
  double effective_gflops() const { return shape.flops() / sparse_ms * 1e-6; }
  double real_gflops() const { return effective_gflops() * pattern.keep() / pattern.group(); }
  double fp32_share = 0;  // in bf16 only: the share of the FMA peak that the fp32 product reached

  // The dense fp32 peer did not reach what it can, so something else used the machine. Means
  // nothing where memory is the bound, or the product is too small to reach the peak.
  bool disturbed() const {
    constexpr double kLargeEnough = 1e9;  // flops
    if (shape.tokens <= kFewTokens || shape.flops() < kLargeEnough) return false;
    return (dense_fp32_ms ? fp32_share : dense_gflops() / peak_gflops) < 0.8;
  }
};

std::vector<GemmRecord> bench_gemm(const GemmOptions& options,
                                   const std::function<void(double fraction)>& progress);

}  // namespace weft::bench
