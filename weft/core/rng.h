// Rng: counter-based random numbers (Philox 4x32-10 of Random123).
//
// A number is a pure function of (seed, stream, index): there is no state to share, so results do
// not depend on threads, on order, or on what was drawn before. Streams tell uses apart (a layer, a
// tensor, a step); the index counts within one.
#pragma once

#include <Random123/philox.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace weft {

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0) : seed_(seed), stream_(stream) {}

  // Four independent 32-bit words.
  std::array<uint32_t, 4> words(uint64_t index) const {
    const r123::Philox4x32::ctr_type counter = {
        {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
         static_cast<uint32_t>(stream_), static_cast<uint32_t>(stream_ >> 32)}};
    const r123::Philox4x32::key_type key = {
        {static_cast<uint32_t>(seed_), static_cast<uint32_t>(seed_ >> 32)}};
    const r123::Philox4x32::ctr_type drawn = r123::Philox4x32()(counter, key);
    return {drawn[0], drawn[1], drawn[2], drawn[3]};
  }

  uint64_t bits(uint64_t index) const {
    const auto w = words(index);
    return (uint64_t{w[1]} << 32) | w[0];
  }

  // In [0, 1), a multiple of 2^-53.
  double uniform(uint64_t index) const { return unit(bits(index)); }

  // In [0, bound), bound > 0; the bias is below bound / 2^64.
  uint64_t below(uint64_t index, uint64_t bound) const {
    return static_cast<uint64_t>((static_cast<Wide>(bits(index)) * bound) >> 64);
  }

  // Two independent standard normals (Box-Muller).
  std::array<double, 2> normals(uint64_t index) const {
    const auto w = words(index);
    const double radius_draw = 1.0 - unit((uint64_t{w[1]} << 32) | w[0]);  // in (0, 1]
    const double angle = 2 * std::numbers::pi * unit((uint64_t{w[3]} << 32) | w[2]);
    const double radius = std::sqrt(-2 * std::log(radius_draw));
    return {radius * std::cos(angle), radius * std::sin(angle)};
  }
  double normal(uint64_t index) const { return normals(index / 2)[index % 2]; }

 private:
  __extension__ using Wide = unsigned __int128;

  static double unit(uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace weft
