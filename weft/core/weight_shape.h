// WeightShape: the memory layout of the weights of a layer, and the axis along which they are
// grouped.
//
//   linear       [outs, ins]              taps = 1
//   convolution  [outs, ins, kh, kw]      taps = kh * kw, ins = channels
//
// A group is `group` consecutive ins at one tap of one output; a transposable tile is group x group
// over (outs, ins) at one tap. So a convolution is `taps` interleaved [outs, ins] matrices: weight
// (o, i, tap) is at o * cols() + i * taps + tap. Groups never straddle taps or rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "weft/core/error.h"

namespace weft {

struct WeightShape {
  int64_t outs = 0;
  int64_t ins = 0;
  int64_t taps = 1;

  int64_t cols() const { return ins * taps; }

  void check() const {
    int64_t width = 0, all = 0;
    WEFT_CHECK(outs >= 0 && ins >= 0 && taps >= 0 && !__builtin_mul_overflow(ins, taps, &width) &&
                   !__builtin_mul_overflow(outs, width, &all),
               "weights of {} x {} x {}: sizes must not be negative or overflow", outs, ins, taps);
  }

  static bool accepts(std::span<const int64_t> dims) {
    return dims.size() == 2 || dims.size() == 4;
  }
  static WeightShape of(std::span<const int64_t> dims) {
    WEFT_CHECK(accepts(dims), "weights of {} dimensions: accepted are 2 (linear) and 4 (conv)",
               dims.size());
    int64_t taps = 1;
    const bool overflow = dims.size() == 4 && __builtin_mul_overflow(dims[2], dims[3], &taps);
    WEFT_CHECK(!overflow, "a kernel of {} x {} overflows", dims[2], dims[3]);
    const WeightShape shape{dims[0], dims[1], taps};
    shape.check();
    return shape;
  }

  // The index into a tensor of these dims of the weight at row `out`, column `col` of its
  // [outs, cols()] matrix: [out, col], or [out, in, y, x].
  static std::vector<int64_t> index_of(std::span<const int64_t> dims, int64_t out, int64_t col) {
    const WeightShape shape = of(dims);
    WEFT_CHECK(out >= 0 && out < shape.outs && col >= 0 && col < shape.cols(),
               "weight ({}, {}) is not in a matrix of {} x {}", out, col, shape.outs, shape.cols());
    if (dims.size() == 2) return {out, col};
    const int64_t tap = col % shape.taps;
    return {out, col / shape.taps, tap / dims[3], tap % dims[3]};
  }
};

}  // namespace weft
