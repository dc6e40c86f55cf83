// bfloat16: the upper half of a float. `Bf16` is one as stored in memory.
#pragma once

#include <bit>
#include <cstdint>

namespace weft {

struct Bf16 {
  uint16_t bits = 0;

  friend bool operator==(const Bf16&, const Bf16&) = default;
};
static_assert(sizeof(Bf16) == 2);

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// To the nearest, ties to even; NaN stays NaN, what is too large becomes infinite.
inline uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  if (nan) return static_cast<uint16_t>((bits >> 16) | 0x0040);  // a payload in the lower half only
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float to_float(Bf16 value) { return bf16_to_float(value.bits); }
inline Bf16 to_bf16(float value) { return {float_to_bf16(value)}; }

}  // namespace weft
