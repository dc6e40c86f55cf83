#include "weft/checkpoint/dtype.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "weft/core/error.h"
#include "weft/core/parallel.h"

namespace weft {
namespace {

// nonzero_bits: an element is zero when these bits of it are (a sign does not count); 0 where the
// type has no zero (E8M0 scales) or shares bytes between elements.
struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  int bits;
  bool weight;
  uint64_t nonzero_bits;
};

constexpr uint64_t kAll = ~uint64_t{0};

constexpr std::array kTable = {
    DtypeRow{Dtype::kBool, "BOOL", 8, false, kAll},
    DtypeRow{Dtype::kU8, "U8", 8, false, kAll},
    DtypeRow{Dtype::kI8, "I8", 8, false, kAll},
    DtypeRow{Dtype::kU16, "U16", 16, false, kAll},
    DtypeRow{Dtype::kI16, "I16", 16, false, kAll},
    DtypeRow{Dtype::kU32, "U32", 32, false, kAll},
    DtypeRow{Dtype::kI32, "I32", 32, false, kAll},
    DtypeRow{Dtype::kU64, "U64", 64, false, kAll},
    DtypeRow{Dtype::kI64, "I64", 64, false, kAll},
    DtypeRow{Dtype::kF4, "F4", 4, false, 0},
    DtypeRow{Dtype::kF6E2M3, "F6_E2M3", 6, false, 0},
    DtypeRow{Dtype::kF6E3M2, "F6_E3M2", 6, false, 0},
    DtypeRow{Dtype::kF8E8M0, "F8_E8M0", 8, false, 0},
    DtypeRow{Dtype::kF8E4M3, "F8_E4M3", 8, false, 0x7f},
    DtypeRow{Dtype::kF8E5M2, "F8_E5M2", 8, false, 0x7f},
    // In the FNUZ types the code of minus zero is NaN.
    DtypeRow{Dtype::kF8E4M3Fnuz, "F8_E4M3FNUZ", 8, false, kAll},
    DtypeRow{Dtype::kF8E5M2Fnuz, "F8_E5M2FNUZ", 8, false, kAll},
    DtypeRow{Dtype::kF16, "F16", 16, true, 0x7fff},
    DtypeRow{Dtype::kBf16, "BF16", 16, true, 0x7fff},
    DtypeRow{Dtype::kF32, "F32", 32, true, 0x7fffffff},
    DtypeRow{Dtype::kF64, "F64", 64, true, 0x7fffffffffffffff},
    DtypeRow{Dtype::kC64, "C64", 64, false, 0x7fffffff7fffffff},
};

constexpr bool table_follows_enum() {
  for (size_t i = 0; i < kTable.size(); ++i) {
    if (static_cast<size_t>(kTable[i].dtype) != i) return false;
  }
  return true;
}
static_assert(table_follows_enum());

const DtypeRow& row_of(Dtype dtype) { return kTable[static_cast<size_t>(dtype)]; }

template <typename Element>
Element load(const std::byte* from) {
  Element element;
  std::memcpy(&element, from, sizeof element);
  return element;
}

float widen_f16(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  constexpr uint32_t kRebias = (127 - 15) << 23;
  // No arithmetic on subnormal floats: a process may have told the CPU to take them for zero.
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + kRebias;
  const uint32_t not_finite = (magnitude << 13) | 0x7f800000u;
  const uint32_t bits = magnitude < 0x400u ? subnormal : magnitude < 0x7c00u ? normal : not_finite;
  return std::bit_cast<float>(bits | (half & 0x8000u) << 16);
}

float widen_bf16(uint16_t half) { return std::bit_cast<float>(uint32_t{half} << 16); }

// A floating-point type of 16 bits: sign, exponent, mantissa.
struct HalfFormat {
  int mantissa_bits;
  int least_exponent;  // of normal numbers
};
constexpr HalfFormat kF16 = {10, -14};
constexpr HalfFormat kBf16 = {7, -126};

uint16_t round_to_half(double value, const HalfFormat& format) {
  const uint32_t sign = std::signbit(value) ? 0x8000u : 0;
  const uint32_t infinite = 0x7fffu >> format.mantissa_bits << format.mantissa_bits;
  if (std::isnan(value)) return static_cast<uint16_t>(sign | infinite | 1);
  if (value == 0 || std::isinf(value))
    return static_cast<uint16_t>(sign | (value == 0 ? 0 : infinite));
  // In units of the last place the number is mantissa + (exponent - least) * 2^mantissa_bits, and a
  // mantissa that rounds up to the next power of two carries into the exponent by itself.
  const int exponent = std::max(std::ilogb(value), format.least_exponent);
  const double mantissa =
      std::nearbyint(std::scalbn(std::abs(value), format.mantissa_bits - exponent));
  const double units =
      mantissa + std::scalbn(exponent - format.least_exponent, format.mantissa_bits);
  return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::min<double>(units, infinite)));
}

// Calls `body` with a value of the unsigned integer type that is as wide as an element.
template <typename Body>
void with_element_type(Dtype dtype, Body body) {
  switch (row_of(dtype).bits) {
    case 8: return body(uint8_t{});
    case 16: return body(uint16_t{});
    case 32: return body(uint32_t{});
    case 64: return body(uint64_t{});
    default: throw Error(fmt::format("dtype {} has no whole-byte elements", dtype_name(dtype)));
  }
}

void check_size(Dtype dtype, size_t bytes, int64_t elements) {
  WEFT_CHECK(bytes * 8 == static_cast<size_t>(elements) * static_cast<size_t>(dtype_bits(dtype)),
             "{} bytes are not {} elements of {}", bytes, elements, dtype_name(dtype));
}

}  // namespace

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const DtypeRow& row : kTable) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

std::string_view dtype_name(Dtype dtype) { return row_of(dtype).name; }
int dtype_bits(Dtype dtype) { return row_of(dtype).bits; }
bool is_weight_dtype(Dtype dtype) { return row_of(dtype).weight; }
bool has_zero(Dtype dtype) { return row_of(dtype).nonzero_bits != 0; }

Mask nonzero_mask(Dtype dtype, std::span<const std::byte> bytes, int64_t rows, int64_t cols) {
  WEFT_CHECK(has_zero(dtype), "dtype {} has no zero to look for", dtype_name(dtype));
  check_size(dtype, bytes.size(), rows * cols);
  Mask mask(rows, cols);
  with_element_type(dtype, [&]<typename Element>(Element) {
    const auto significant = static_cast<Element>(row_of(dtype).nonzero_bits);
    parallel_for(rows, [&](int64_t r) {
      const std::byte* row = bytes.data() + static_cast<size_t>(r * cols) * sizeof(Element);
      for (int64_t c = 0; c < cols; c += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, cols - c));
        uint64_t bits = 0;
        for (int i = 0; i < count; ++i) {
          const Element element = load<Element>(row + static_cast<size_t>(c + i) * sizeof(Element));
          bits |= uint64_t{(element & significant) != 0} << i;
        }
        mask.put_bits(r, c, count, bits);
      }
    });
  });
  return mask;
}

void widen_weights(Dtype dtype, std::span<const std::byte> bytes, std::span<float> out) {
  check_size(dtype, bytes.size(), static_cast<int64_t>(out.size()));
  const std::byte* from = bytes.data();
  switch (dtype) {
    case Dtype::kF32:
      if (!out.empty()) std::memcpy(out.data(), from, bytes.size());
      return;
    case Dtype::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = widen_f16(load<uint16_t>(from + 2 * i));
      return;
    case Dtype::kBf16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = widen_bf16(load<uint16_t>(from + 2 * i));
      return;
    default: throw Error(fmt::format("dtype {} does not widen to float", dtype_name(dtype)));
  }
}

void round_weights(std::span<const double> weights, Dtype dtype, std::span<std::byte> bytes) {
  check_size(dtype, bytes.size(), static_cast<int64_t>(weights.size()));
  const auto store_all = [&](auto round) {
    using Element = decltype(round(0.0));
    for (size_t i = 0; i < weights.size(); ++i) {
      const Element element = round(weights[i]);
      std::memcpy(bytes.data() + i * sizeof element, &element, sizeof element);
    }
  };
  switch (dtype) {
    case Dtype::kF64: return store_all([](double w) { return w; });
    case Dtype::kF32: return store_all([](double w) { return static_cast<float>(w); });
    case Dtype::kF16: return store_all([](double w) { return round_to_half(w, kF16); });
    case Dtype::kBf16: return store_all([](double w) { return round_to_half(w, kBf16); });
    default: throw Error(fmt::format("dtype {} holds no weights", dtype_name(dtype)));
  }
}

void zero_outside(const Mask& mask, Dtype dtype, std::span<std::byte> bytes) {
  check_size(dtype, bytes.size(), mask.rows() * mask.cols());
  with_element_type(dtype, [&]<typename Element>(Element) {
    parallel_for(mask.rows(), [&](int64_t r) {
      std::byte* row = bytes.data() + static_cast<size_t>(r * mask.cols()) * sizeof(Element);
      for (int64_t c = 0; c < mask.cols(); c += 64) {
        const int count = static_cast<int>(std::min<int64_t>(64, mask.cols() - c));
        const uint64_t kept = mask.bits(r, c, count);
        for (int i = 0; i < count; ++i) {
          std::byte* element = row + static_cast<size_t>(c + i) * sizeof(Element);
          if (((kept >> i) & 1) == 0) std::memset(element, 0, sizeof(Element));
        }
      }
    });
  });
}

std::vector<std::byte> mask_bytes(const Mask& mask) {
  std::vector<std::byte> bytes(static_cast<size_t>(mask.rows() * mask.cols()));
  parallel_for(mask.rows(), [&](int64_t r) {
    std::byte* row = bytes.data() + r * mask.cols();
    for (int64_t c = 0; c < mask.cols(); c += 64) {
      const int count = static_cast<int>(std::min<int64_t>(64, mask.cols() - c));
      const uint64_t kept = mask.bits(r, c, count);
      for (int i = 0; i < count; ++i) row[c + i] = static_cast<std::byte>((kept >> i) & 1);
    }
  });
  return bytes;
}

}  // namespace weft
