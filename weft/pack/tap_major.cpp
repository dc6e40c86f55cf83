#include <algorithm>

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

// One row, [ins, taps] -> [taps, ins]: a word for the taps of each input, transposed as a mask is.
void tap_major_row(const Mask& mask, int64_t out, const WeightShape& shape, Mask& by_input,
                   Mask& result) {
  const auto taps = static_cast<int>(shape.taps);
  for (int64_t in = 0; in < shape.ins; ++in) {
    *by_input.row_words(in) = mask.bits(out, in * taps, taps);
  }
  const Mask by_tap = by_input.transposed();
  MaskRowWriter writer(result.row_words(out));
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t in = 0; in < shape.ins; in += 64) {
      const int count = static_cast<int>(std::min<int64_t>(64, shape.ins - in));
      writer.append(by_tap.bits(tap, in, count), count);
    }
  }
  writer.finish();
}

// Calls append(bits, count) with the taps in `taps` of one input of one output, at most 64 at a time.
template <typename Append>
void append_taps(const Mask& mask, int64_t out, int64_t col, int64_t all,
                 std::span<const int64_t> taps, Append append) {
  for (size_t first = 0; first < taps.size(); first += 64) {
    const size_t count = std::min<size_t>(64, taps.size() - first);
    if (static_cast<int64_t>(taps.size()) == all) {  // they are all of them, in order
      append(mask.bits(out, col + static_cast<int64_t>(first), static_cast<int>(count)), count);
      continue;
    }
    uint64_t bits = 0;
    for (size_t t = 0; t < count; ++t) {
      bits |= uint64_t{mask.at(out, col + taps[first + t])} << t;
    }
    append(bits, count);
  }
}

}  // namespace

Mask filters_transposed(const Mask& mask, const WeightShape& shape, std::span<const int64_t> taps) {
  check_size(mask.rows(), mask.cols(), shape);
  if (shape.taps == 1 && taps.size() == 1) return mask.transposed();
  Mask result(shape.ins, shape.outs * static_cast<int64_t>(taps.size()));
  parallel_for(shape.ins, [&](int64_t in) {
    MaskRowWriter writer(result.row_words(in));
    for (int64_t out = 0; out < shape.outs; ++out) {
      append_taps(mask, out, in * shape.taps, shape.taps, taps, [&](uint64_t bits, size_t count) {
        writer.append(bits, static_cast<int>(count));
      });
    }
    writer.finish();
  });
  return result;
}

TapMajor tap_major(const float* weights, const Mask& mask, const WeightShape& shape) {
  TapMajor result{{}, tap_major(mask, shape)};
  result.weights.resize(static_cast<size_t>(shape.outs * shape.cols()));
  parallel_for(shape.outs, [&](int64_t out) {
    const float* from = weights + out * shape.cols();
    float* to = result.weights.data() + out * shape.cols();
    for (int64_t tap = 0; tap < shape.taps; ++tap) {
      for (int64_t in = 0; in < shape.ins; ++in) *to++ = from[in * shape.taps + tap];
    }
  });
  return result;
}

Mask tap_major(const Mask& mask, const WeightShape& shape) {
  check_size(mask.rows(), mask.cols(), shape);
  if (shape.taps <= 1) return mask;
  Mask result(shape.outs, shape.cols());
  if (shape.taps <= 64) {
    constexpr int64_t kRows = 16;  // that use the same memory one after the other
    parallel_for((shape.outs + kRows - 1) / kRows, [&](int64_t item) {
      Mask by_input(shape.ins, shape.taps);
      for (int64_t out = item * kRows; out < std::min(shape.outs, (item + 1) * kRows); ++out) {
        tap_major_row(mask, out, shape, by_input, result);
      }
    });
  } else {
    for_each_weight(shape, [&](int64_t out, int64_t from, int64_t to) {
      if (mask.at(out, from)) result.set(out, to, true);
    });
  }
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
