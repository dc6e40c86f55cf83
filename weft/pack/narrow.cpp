#include "weft/pack/narrow.h"

#include <bit>
#include <cstring>

#include "weft/core/error.h"

namespace weft {
namespace {

// The lower half of a float that was BF16 is zero.
std::optional<uint16_t> exact_bf16(uint32_t bits) {
  if ((bits & 0xffff) != 0) return std::nullopt;
  return static_cast<uint16_t>(bits >> 16);
}

// The inverse of widening: subnormals of F16 are normal floats, NaNs keep their payload.
std::optional<uint16_t> to_f16(uint32_t bits) {
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t exponent = bits >> 23 & 0xff;
  const uint32_t fraction = bits & 0x7fffff;
  uint32_t magnitude = 0;
  uint32_t lost = 0;
  if (exponent == 0) {
    lost = fraction;
  } else if (exponent == 0xff) {
    magnitude = 0x7c00 | fraction >> 13;
    lost = fraction & 0x1fff;
  } else if (exponent >= 127 - 14) {
    if (exponent > 127 + 15) return std::nullopt;
    magnitude = (exponent - (127 - 15)) << 10 | fraction >> 13;
    lost = fraction & 0x1fff;
  } else {
    const uint32_t shift = 13 + (127 - 14) - exponent;  // 14 to 23 where F16 has a number
    if (shift > 23) return std::nullopt;
    const uint32_t whole = fraction | 0x800000;
    magnitude = whole >> shift;
    lost = whole & ((uint32_t{1} << shift) - 1);
  }
  if (lost != 0) return std::nullopt;
  return static_cast<uint16_t>(sign | magnitude);
}

}  // namespace

std::optional<int64_t> narrow_exactly(std::span<const float> weights, Dtype dtype,
                                      std::span<std::byte> bytes) {
  WEFT_CHECK(dtype == Dtype::kF32 || dtype == Dtype::kBf16 || dtype == Dtype::kF16,
             "dtype {} does not narrow from float", dtype_name(dtype));
  const size_t size = static_cast<size_t>(dtype_bits(dtype)) / 8;
  WEFT_CHECK(bytes.size() == weights.size() * size, "{} bytes are not {} elements of {}",
             bytes.size(), weights.size(), dtype_name(dtype));
  if (dtype == Dtype::kF32) {
    if (!weights.empty()) std::memcpy(bytes.data(), weights.data(), bytes.size());
    return std::nullopt;
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto bits = std::bit_cast<uint32_t>(weights[i]);
    const std::optional<uint16_t> narrow = dtype == Dtype::kBf16 ? exact_bf16(bits) : to_f16(bits);
    if (!narrow) return static_cast<int64_t>(i);
    std::memcpy(bytes.data() + 2 * i, &*narrow, 2);
  }
  return std::nullopt;
}

}  // namespace weft
