// Compact weights: the kept values of an N:M matrix and no others, in the order of its columns.
//
//   W        [outs, ins, taps]            2:4   a 0 b 0 | 0 0 c 0   (one tap)
//   compact  [outs, slots(ins), taps]           a   b   | c   0     two slots per group
//
// A group with fewer kept values than the pattern has slots is filled up with zeros; a last group
// that is shorter than pattern.keep() has as many slots as weights. What an optimiser holds of such a matrix is
// smaller by N/M. No indices: the mask is beside it.
#pragma once

#include "weft/core/mask.h"
#include "weft/core/pattern.h"
#include "weft/core/weight_shape.h"

namespace weft {

// Slots of one row at one tap.
int64_t compact_slots(const WeightShape& shape, const Pattern& pattern);
inline int64_t compact_size(const WeightShape& shape, const Pattern& pattern) {
  return shape.outs * compact_slots(shape, pattern) * shape.taps;
}

// Error unless the mask has the shape, and obeys the pattern along inputs.
void compact(const float* values, const Mask& mask, const WeightShape& shape,
             const Pattern& pattern, float* out);
// The whole matrix, zero where the mask drops.
void expand_compact(const float* compact, const Mask& mask, const WeightShape& shape,
                    const Pattern& pattern, float* out);

}  // namespace weft
