#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/pack/pack.h"

namespace weft {
namespace {

void check_size(int64_t rows, int64_t cols, const WeightShape& shape) {
  shape.check();
  WEFT_CHECK(rows == shape.outs && cols == shape.cols(),
             "a mask of {} x {} does not fit weights of {} x {}", rows, cols, shape.outs,
             shape.cols());
}

// Calls body(out, column in the tensor, column in order of tap); rows in parallel.
template <typename Body>
void for_each_weight(const WeightShape& shape, Body body) {
  if (shape.cols() == 0) return;
  parallel_for(shape.outs, [&](int64_t out) {
    for (int64_t in = 0; in < shape.ins; ++in) {
      for (int64_t tap = 0; tap < shape.taps; ++tap) {
        body(out, in * shape.taps + tap, tap * shape.ins + in);
      }
    }
  });
}

}  // namespace

TapMajor tap_major(const float* weights, const Mask& mask, const WeightShape& shape) {
  TapMajor result{{}, tap_major(mask, shape)};
  result.weights.resize(static_cast<size_t>(shape.outs * shape.cols()));
  for_each_weight(shape, [&](int64_t out, int64_t from, int64_t to) {
    const int64_t row = out * shape.cols();
    result.weights[static_cast<size_t>(row + to)] = weights[row + from];
  });
  return result;
}

Mask tap_major(const Mask& mask, const WeightShape& shape) {
  check_size(mask.rows(), mask.cols(), shape);
  Mask result(shape.outs, shape.cols());
  for_each_weight(shape, [&](int64_t out, int64_t from, int64_t to) {
    if (mask.at(out, from)) result.set(out, to, true);
  });
  return result;
}

std::vector<float> tensor_order(const std::vector<float>& weights, const WeightShape& shape) {
  shape.check();
  WEFT_CHECK(weights.size() == static_cast<size_t>(shape.outs * shape.cols()),
             "{} weights are not {} x {}", weights.size(), shape.outs, shape.cols());
  std::vector<float> result(weights.size());
  for_each_weight(shape, [&](int64_t out, int64_t to, int64_t from) {
    const int64_t row = out * shape.cols();
    result[static_cast<size_t>(row + to)] = weights[static_cast<size_t>(row + from)];
  });
  return result;
}

Mask tensor_order(const Mask& mask, const WeightShape& shape) {
  check_size(mask.rows(), mask.cols(), shape);
  Mask result(shape.outs, shape.cols());
  for_each_weight(shape, [&](int64_t out, int64_t to, int64_t from) {
    if (mask.at(out, from)) result.set(out, to, true);
  });
  return result;
}

}  // namespace weft
