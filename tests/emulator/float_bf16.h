// Numbers as VDPBF16PS and TDPBF16PS take them: subnormal ones are zero, in and out.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "weft/core/bf16.h"

namespace weft::test {

inline float flushed(float value) {
  return std::fabs(value) < std::numeric_limits<float>::min() ? 0.0f : value;
}

// Element `index` of a vector of bf16.
inline float bf16_at(const uint8_t* vector, int index) {
  Bf16 value;
  std::memcpy(&value, vector + static_cast<size_t>(2 * index), 2);
  return flushed(to_float(value));
}

}  // namespace weft::test
