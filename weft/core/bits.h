// Counting bits without an instruction for it.
//
// std::popcount is a call into libgcc on CPUs without popcnt, which is what we compile for outside
// Highway, and was half of the time of packing; this is a dozen operations, inline.
#pragma once

#include <cstdint>

namespace weft {

inline int popcount64(uint64_t x) {
#if defined(__POPCNT__)
  return __builtin_popcountll(x);
#else
  x -= (x >> 1) & 0x5555555555555555;
  x = (x & 0x3333333333333333) + ((x >> 2) & 0x3333333333333333);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0f;
  return static_cast<int>((x * 0x0101010101010101) >> 56);
#endif
}

}  // namespace weft
