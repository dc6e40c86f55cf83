// Attention, forward and backward (kernel/attention/attention.h), against the same formula in three
// steps: the scores of a head as one matrix, their softmax, and the product with v, through weft's
// dense kernels.
//
// All take turns in every round; figures are medians over the rounds. Before anything is timed, some
// rows of the output and of the gradient of q are compared with the formula in double: a difference
// is an Error and no figure.
#pragma once

#include <functional>
#include <vector>

#include "bench/spread.h"
#include "weft/kernel/attention/attention.h"

namespace weft::bench {

struct AttentionRecord {
  AttentionShape shape;
  double forward_ms = 0;
  double backward_ms = 0;
  double steps_ms = 0;  // forward in three steps
  Spread ratio = {};    // three steps / forward; the median is that of the medians
  double peak_gflops = 0;

  double forward_flops() const;  // what a causal mask leaves
  double backward_flops() const;
};

std::vector<AttentionRecord> bench_attention(const std::vector<AttentionShape>& shapes, int rounds,
                                             const std::function<void(double fraction)>& progress);

}  // namespace weft::bench
