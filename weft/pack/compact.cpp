#include "weft/pack/compact.h"

#include <algorithm>

#include "weft/core/error.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// Calls visit(column, place in the compact row) for every kept weight of a row.
template <typename Visit>
void for_each_kept(const Mask& mask, int64_t row, const WeightShape& shape, const Pattern& pattern,
                   Visit visit) {
  for (int64_t tap = 0; tap < shape.taps; ++tap) {
    int64_t slot = 0;
    for (int64_t first = 0; first < shape.ins; first += pattern.group()) {
      const int64_t end = std::min<int64_t>(first + pattern.group(), shape.ins);
      const int64_t slots = std::min<int64_t>(pattern.keep(), end - first);
      int64_t used = 0;
      for (int64_t in = first; in < end; ++in) {
        const int64_t col = in * shape.taps + tap;
        if (!mask.at(row, col)) continue;
        WEFT_CHECK(used < slots, "row {}: more than {} kept at inputs {} to {}, tap {}", row, slots,
                   first, end - 1, tap);
        visit(col, (slot + used++) * shape.taps + tap);
      }
      slot += slots;
    }
  }
}

void check_mask(const Mask& mask, const WeightShape& shape) {
  WEFT_CHECK(mask.rows() == shape.outs && mask.cols() == shape.cols(),
             "a mask of {} x {} for a weight of {} x {}", mask.rows(), mask.cols(), shape.outs,
             shape.cols());
}

}  // namespace

int64_t compact_slots(const WeightShape& shape, const Pattern& pattern) {
  const int64_t whole = shape.ins / pattern.group(), rest = shape.ins % pattern.group();
  return whole * pattern.keep() + std::min<int64_t>(pattern.keep(), rest);
}

void compact(const float* values, const Mask& mask, const WeightShape& shape,
             const Pattern& pattern, float* out) {
  check_mask(mask, shape);
  const int64_t row_size = compact_slots(shape, pattern) * shape.taps;
  parallel_for(shape.outs, [&](int64_t row) {
    float* to = out + row * row_size;
    std::fill_n(to, row_size, 0.0f);
    const float* from = values + row * shape.cols();
    for_each_kept(mask, row, shape, pattern,
                  [&](int64_t col, int64_t place) { to[place] = from[col]; });
  });
}

void expand_compact(const float* compact, const Mask& mask, const WeightShape& shape,
                    const Pattern& pattern, float* out) {
  check_mask(mask, shape);
  const int64_t row_size = compact_slots(shape, pattern) * shape.taps;
  parallel_for(shape.outs, [&](int64_t row) {
    float* to = out + row * shape.cols();
    std::fill_n(to, shape.cols(), 0.0f);
    const float* from = compact + row * row_size;
    for_each_kept(mask, row, shape, pattern,
                  [&](int64_t col, int64_t place) { to[col] = from[place]; });
  });
}

}  // namespace weft
