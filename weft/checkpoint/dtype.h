// Dtype: every element type of the safetensors format.
//
// All of them pass through weft bit for bit; F32, F16, BF16 and F64 are usable as weights.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "weft/core/error.h"
#include "weft/core/mask.h"

namespace weft {

enum class Dtype : uint8_t {
  kBool,
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kU64,
  kI64,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kF8E8M0,
  kF8E4M3,
  kF8E5M2,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kF16,
  kBf16,
  kF32,
  kF64,
  kC64,
};

std::optional<Dtype> parse_dtype(std::string_view name);
std::string_view dtype_name(Dtype dtype);
int dtype_bits(Dtype dtype);
bool is_weight_dtype(Dtype dtype);

// True where "is this element zero?" has an answer on whole bytes: not for sub-byte and scale
// types.
bool has_zero(Dtype dtype);

// bytes: [mask.rows, mask.cols] elements. Sets the mask where an element is not zero; -0 is zero,
// NaN is not. Requires has_zero(dtype).
Mask nonzero_mask(Dtype dtype, std::span<const std::byte> bytes, int64_t rows, int64_t cols);

// F16, BF16 and F32 widened to float, exactly. bytes: [out.size()] elements.
void widen_weights(Dtype dtype, std::span<const std::byte> bytes, std::span<float> out);

// Rounded to the nearest of the type, ties to even; what is too large becomes infinite. dtype: one
// that is_weight_dtype. bytes: [weights.size()] elements.
void round_weights(std::span<const double> weights, Dtype dtype, std::span<std::byte> bytes);

// Calls body(span of float or double) with the weights in the type that holds them exactly: double
// for F64, float for the others.
template <typename Body>
auto with_weights(Dtype dtype, std::span<const std::byte> bytes, Body body) {
  if (dtype == Dtype::kF64) {
    WEFT_CHECK(bytes.size() % sizeof(double) == 0, "{} bytes are not whole elements of F64",
               bytes.size());
    std::vector<double> weights(bytes.size() / sizeof(double));
    if (!weights.empty()) std::memcpy(weights.data(), bytes.data(), bytes.size());
    return body(std::span<const double>(weights));
  }
  std::vector<float> weights(bytes.size() * 8 / static_cast<size_t>(dtype_bits(dtype)));
  widen_weights(dtype, bytes, weights);
  return body(std::span<const float>(weights));
}

// Sets the elements outside the mask to +0 and leaves the others bit for bit as they are.
void zero_outside(const Mask& mask, Dtype dtype, std::span<std::byte> bytes);

// The mask as a U8 tensor of [mask.rows, mask.cols] elements: 1 where it is set, 0 elsewhere.
std::vector<std::byte> mask_bytes(const Mask& mask);

}  // namespace weft
