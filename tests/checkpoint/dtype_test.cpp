// Types of tensors: names, widening, rounding, and what is zero.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/checkpoint/tensor_files.h"
#include "tests/support.h"
#include "weft/checkpoint/dtype.h"
#include "weft/core/error.h"
#include "weft/core/mask.h"
#include "weft/core/rng.h"

namespace weft::test {
namespace {

TEST(Dtype, NamesAreThoseOfTheFormat) {
  std::set<std::string_view> names;
  for (const Dtype dtype : all_dtypes()) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype)), dtype) << dtype_name(dtype);
    names.insert(dtype_name(dtype));
  }
  EXPECT_EQ(names, (std::set<std::string_view>{
                       "BOOL",    "U8",      "I8",      "U16",         "I16",         "U32",
                       "I32",     "U64",     "I64",     "F4",          "F6_E2M3",     "F6_E3M2",
                       "F8_E8M0", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F16",
                       "BF16",    "F32",     "F64",     "C64"}));
  for (const char* name : {"", "f32", "F33", "F32 ", "FLOAT"}) {
    EXPECT_EQ(parse_dtype(name), std::nullopt) << name;
  }
}

TEST(Dtype, WeightsAreTheFourFloatingPointTypes) {
  for (const Dtype dtype : all_dtypes()) {
    const bool expected = dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBf16 ||
                          dtype == Dtype::kF64;
    EXPECT_EQ(is_weight_dtype(dtype), expected) << dtype_name(dtype);
  }
}

// The value of a 16-bit float from the definition, in double, where all of them are exact.
double value_of(uint16_t code, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = code & ((1 << mantissa_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (code & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

TEST(Dtype, WidensEveryCodeOfF16AndBf16Exactly) {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(codes.size());
  for (const auto& [dtype, exponent_bits] : {std::pair(Dtype::kF16, 5), {Dtype::kBf16, 8}}) {
    widen_weights(dtype, std::as_bytes(std::span(codes)), wide);
    for (size_t i = 0; i < codes.size(); ++i) {
      const double expected = value_of(codes[i], exponent_bits);
      const auto code = static_cast<unsigned>(codes[i]);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << dtype_name(dtype) << fmt::format(" {:#06x}", code);
      } else {
        ASSERT_EQ(double{wide[i]}, expected) << dtype_name(dtype) << fmt::format(" {:#06x}", code);
      }
      ASSERT_EQ(std::signbit(wide[i]), code >= 0x8000) << fmt::format("{:#06x}", code);
    }
  }
}

// Between two neighbours the nearer one, half-way the even one, beyond the last infinity.
TEST(Dtype, RoundsToTheNearestF16AndBf16) {
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    const uint16_t infinite = dtype == Dtype::kF16 ? 0x7c00 : 0x7f80;
    const auto value_of = [&](uint16_t code) {
      float value = 0;
      widen_weights(dtype, std::as_bytes(std::span(&code, 1)), std::span(&value, 1));
      return static_cast<double>(value);
    };
    const auto rounded = [&](double value) {
      uint16_t code = 0;
      round_weights(std::span(&value, 1), dtype, std::as_writable_bytes(std::span(&code, 1)));
      return code;
    };
    for (uint16_t code = 0; code + 1 < infinite; ++code) {
      const double low = value_of(code), high = value_of(static_cast<uint16_t>(code + 1));
      ASSERT_EQ(rounded(low), code);
      ASSERT_EQ(rounded(-low), code | 0x8000);
      ASSERT_EQ(rounded(low + 0.49 * (high - low)), code);
      ASSERT_EQ(rounded(low + 0.51 * (high - low)), code + 1);
      ASSERT_EQ(rounded(low + 0.5 * (high - low)), code % 2 == 0 ? code : code + 1);
    }
    const double last = value_of(static_cast<uint16_t>(infinite - 1));
    const double before = value_of(static_cast<uint16_t>(infinite - 2));
    EXPECT_EQ(rounded(last), infinite - 1);
    EXPECT_EQ(rounded(last + 0.49 * (last - before)), infinite - 1);
    EXPECT_EQ(rounded(last + 0.51 * (last - before)), infinite);
    EXPECT_EQ(rounded(-1e300), infinite | 0x8000);
    EXPECT_TRUE(std::isnan(value_of(rounded(std::nan("")))));
  }
}

TEST(Dtype, F32PassesBitForBit) {
  const std::vector<uint32_t> codes = {0,          0x80000000, 1,          0x3f800000,
                                       0x7f800000, 0x7fa00001, 0xffc00000, 0xff7fffff};
  std::vector<float> wide(codes.size());
  widen_weights(Dtype::kF32, std::as_bytes(std::span(codes)), wide);
  EXPECT_EQ(std::memcmp(wide.data(), codes.data(), codes.size() * 4), 0);
}

TEST(Dtype, WideningRefusesWrongSizesAndTypes) {
  std::vector<float> wide(4);
  const Bytes bytes(64);
  const std::span<const std::byte> all(bytes);
  EXPECT_THROW(widen_weights(Dtype::kF32, all.first(15), wide), Error);
  EXPECT_THROW(widen_weights(Dtype::kF16, all.first(16), wide), Error);
  EXPECT_TRUE(
      contains(message_of([&] { widen_weights(Dtype::kF64, all.first(32), wide); }), "F64"));
  EXPECT_TRUE(
      contains(message_of([&] { widen_weights(Dtype::kI32, all.first(16), wide); }), "I32"));
  widen_weights(Dtype::kF32, {}, {});
}

TEST(Dtype, WeightsComeInTheTypeThatHoldsThem) {
  const std::vector<double> doubles = {1.0, -0x1p-1000, 0x1.123456789abcdp3};
  EXPECT_TRUE(with_weights(Dtype::kF64, std::as_bytes(std::span(doubles)), [&](auto weights) {
    return std::equal(weights.begin(), weights.end(), doubles.begin(), doubles.end());
  }));
  const std::vector<uint16_t> halves = {0x3c00, 0xc000};
  EXPECT_TRUE(with_weights(Dtype::kF16, std::as_bytes(std::span(halves)), [&](auto weights) {
    return weights.size() == 2 && weights[0] == 1 && weights[1] == -2;
  }));
  const Bytes odd(12);
  for (const Dtype dtype : {Dtype::kF64, Dtype::kI64, Dtype::kF4}) {
    EXPECT_THROW(with_weights(dtype, odd, [](auto weights) { return weights.size(); }), Error)
        << dtype_name(dtype);
  }
}

struct ZeroCase {
  Dtype dtype;
  std::vector<uint64_t> zeros;
  std::vector<uint64_t> others;
};

const std::vector<ZeroCase>& zero_cases() {
  static const std::vector<ZeroCase> cases = {
      {Dtype::kBool, {0}, {1}},
      {Dtype::kU8, {0}, {1, 0x80, 0xff}},
      {Dtype::kI8, {0}, {1, 0x80, 0xff}},
      {Dtype::kU16, {0}, {1, 0x8000}},
      {Dtype::kI16, {0}, {1, 0x8000}},
      {Dtype::kU32, {0}, {1, 0x80000000}},
      {Dtype::kI32, {0}, {1, 0x80000000}},
      {Dtype::kU64, {0}, {1, uint64_t{1} << 63}},
      {Dtype::kI64, {0}, {1, uint64_t{1} << 63}},
      {Dtype::kF8E4M3, {0, 0x80}, {1, 0x81, 0x7f, 0xff}},        // 0x7f: NaN
      {Dtype::kF8E5M2, {0, 0x80}, {1, 0x81, 0x7c, 0x7f}},        // infinity, NaN
      {Dtype::kF8E4M3Fnuz, {0}, {1, 0x80, 0x81}},                // 0x80: the one NaN
      {Dtype::kF8E5M2Fnuz, {0}, {1, 0x80, 0x81}},                //
      {Dtype::kF16, {0, 0x8000}, {1, 0x8001, 0x7c00, 0x7e00}},   // subnormals, infinity, NaN
      {Dtype::kBf16, {0, 0x8000}, {1, 0x8001, 0x7f80, 0x7fc0}},  //
      {Dtype::kF32, {0, 0x80000000}, {1, 0x80000001, 0x7f800000, 0x7fc00000, 0xffc00000}},
      {Dtype::kF64, {0, uint64_t{1} << 63}, {1, 0x7ff8000000000000}},
      {Dtype::kC64,
       {0, 0x80000000, uint64_t{1} << 63, 0x8000000080000000},
       {1, uint64_t{1} << 32, 0x7fc0000080000000}}};
  return cases;
}

void put_element(Bytes& bytes, size_t place, size_t width, uint64_t code) {
  std::memcpy(bytes.data() + place * width, &code, width);  // little-endian, as the format is
}

TEST(Dtype, MinusZeroIsZeroAndNaNIsNot) {
  std::set<Dtype> covered;
  for (const ZeroCase& row : zero_cases()) {
    covered.insert(row.dtype);
    const auto width = static_cast<size_t>(dtype_bits(row.dtype) / 8);
    for (const int64_t cols : {1, 2, 63, 64, 65, 129}) {
      SCOPED_TRACE(fmt::format("{} 3 x {}", dtype_name(row.dtype), cols));
      Bytes bytes(static_cast<size_t>(3 * cols) * width);
      Mask expected(3, cols);
      size_t zeros = 0, others = 0;  // used so far, so that every code has its turn
      for (int64_t i = 0; i < 3 * cols; ++i) {
        const bool zero = i % 3 == 1;
        const uint64_t code =
            zero ? row.zeros[zeros++ % row.zeros.size()] : row.others[others++ % row.others.size()];
        put_element(bytes, static_cast<size_t>(i), width, code);
        expected.set(i / cols, i % cols, !zero);
      }
      ASSERT_TRUE(nonzero_mask(row.dtype, bytes, 3, cols) == expected);
    }
  }
  for (const Dtype dtype : all_dtypes()) {
    EXPECT_EQ(has_zero(dtype), covered.contains(dtype)) << dtype_name(dtype);
    if (has_zero(dtype)) continue;
    EXPECT_THROW(nonzero_mask(dtype, Bytes(12), 1, 12), Error) << dtype_name(dtype);
  }
}

TEST(Dtype, NonzeroMaskChecksTheSize) {
  EXPECT_EQ(nonzero_mask(Dtype::kF32, {}, 0, 5), Mask(0, 5));
  EXPECT_EQ(nonzero_mask(Dtype::kF32, {}, 5, 0), Mask(5, 0));
  EXPECT_THROW(nonzero_mask(Dtype::kF32, Bytes(12), 2, 2), Error);
  EXPECT_THROW(nonzero_mask(Dtype::kF32, Bytes(16), -2, -2), Error);
}

TEST(Dtype, ZeroOutsideKeepsTheKeptBitForBit) {
  for (const Dtype dtype : all_dtypes()) {
    if (dtype_bits(dtype) < 8) {
      Bytes bytes(static_cast<size_t>(dtype_bits(dtype)));
      EXPECT_THROW(zero_outside(Mask(2, 4), dtype, bytes), Error) << dtype_name(dtype);
      continue;
    }
    const auto width = static_cast<size_t>(dtype_bits(dtype) / 8);
    for (const int64_t cols : {0, 1, 63, 64, 65, 129}) {
      SCOPED_TRACE(fmt::format("{} 3 x {}", dtype_name(dtype), cols));
      const Bytes before = random_bytes(static_cast<size_t>(3 * cols) * width, 1);
      const Rng rng(7, 2);
      Mask mask(3, cols);
      Bytes expected = before;
      for (int64_t i = 0; i < 3 * cols; ++i) {
        const auto place = static_cast<size_t>(i);
        mask.set(i / cols, i % cols, rng.below(place, 2) == 1);
        if (!mask.at(i / cols, i % cols)) put_element(expected, place, width, 0);
      }
      Bytes after = before;
      zero_outside(mask, dtype, after);
      ASSERT_EQ(after, expected);
    }
  }
  Bytes wrong(15);
  EXPECT_THROW(zero_outside(Mask(2, 2), Dtype::kF32, wrong), Error);
}

TEST(Dtype, MaskBytesAreOnePerWeight) {
  for (const int64_t cols : {0, 1, 63, 64, 65, 129}) {
    SCOPED_TRACE(fmt::format("3 x {}", cols));
    const Rng rng(7, 3);
    Mask mask(3, cols);
    Bytes expected(static_cast<size_t>(3 * cols));
    for (int64_t i = 0; i < 3 * cols; ++i) {
      const auto place = static_cast<size_t>(i);
      expected[place] = static_cast<std::byte>(rng.below(place, 2));
      mask.set(i / cols, i % cols, expected[place] == std::byte{1});
    }
    EXPECT_EQ(mask_bytes(mask), expected);
    EXPECT_EQ(nonzero_mask(Dtype::kU8, mask_bytes(mask), 3, cols), mask);
  }
  EXPECT_TRUE(mask_bytes(Mask()).empty());
}

}  // namespace
}  // namespace weft::test
