#include "weft/pack/narrow.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "weft/core/error.h"

namespace weft::test {
namespace {

std::vector<uint16_t> all_codes() {
  std::vector<uint16_t> codes(65536);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint16_t>(i);
  return codes;
}

std::optional<int64_t> narrow_one(float weight, Dtype dtype) {
  uint16_t code = 0;
  return narrow_exactly({&weight, 1}, dtype, std::as_writable_bytes(std::span(&code, 1)));
}

TEST(Narrow, EveryCodeComesBackBitForBit) {  // payloads of NaN too
  const std::vector<uint16_t> codes = all_codes();
  std::vector<float> wide(codes.size());
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    widen_weights(dtype, std::as_bytes(std::span(codes)), wide);
    std::vector<uint16_t> back(codes.size());
    ASSERT_EQ(narrow_exactly(wide, dtype, std::as_writable_bytes(std::span(back))), std::nullopt);
    EXPECT_EQ(back, codes) << dtype_name(dtype);
  }
}

// The bit of a float below the last bit of the type: a value between two of its numbers.
TEST(Narrow, FloatsBetweenTwoCodesAreRefused) {
  const std::vector<uint16_t> codes = all_codes();
  std::vector<float> wide(codes.size());
  for (const auto& [dtype, bit] : {std::pair(Dtype::kF16, 12), {Dtype::kBf16, 15}}) {
    widen_weights(dtype, std::as_bytes(std::span(codes)), wide);
    for (const float weight : wide) {
      for (const uint32_t lost : {1u, 1u << bit}) {
        const auto between = std::bit_cast<float>(std::bit_cast<uint32_t>(weight) ^ lost);
        ASSERT_EQ(narrow_one(between, dtype), 0) << dtype_name(dtype) << ' ' << weight;
      }
    }
  }
}

TEST(Narrow, FloatsPastTheEndsOfF16AreRefused) {
  EXPECT_EQ(narrow_one(65504, Dtype::kF16), std::nullopt);  // the largest
  EXPECT_EQ(narrow_one(65536, Dtype::kF16), 0);
  EXPECT_EQ(narrow_one(std::ldexp(1.0f, -24), Dtype::kF16), std::nullopt);  // the smallest
  EXPECT_EQ(narrow_one(std::ldexp(1.0f, -25), Dtype::kF16), 0);
  EXPECT_EQ(narrow_one(std::ldexp(1.0f, -100), Dtype::kF16), 0);
  EXPECT_EQ(narrow_one(std::numeric_limits<float>::denorm_min(), Dtype::kF16), 0);
}

TEST(Narrow, NamesTheFirstWeightThatDoesNotFit) {
  const std::vector<float> weights = {1, 2, 0.1f, 3, 0.2f};
  std::vector<uint16_t> codes(weights.size());
  for (const Dtype dtype : {Dtype::kF16, Dtype::kBf16}) {
    EXPECT_EQ(narrow_exactly(weights, dtype, std::as_writable_bytes(std::span(codes))), 2);
  }
  std::vector<float> same(weights.size());
  EXPECT_EQ(narrow_exactly(weights, Dtype::kF32, std::as_writable_bytes(std::span(same))),
            std::nullopt);
  EXPECT_EQ(same, weights);
}

TEST(Narrow, OtherTypesAndSizesAreRefused) {
  const std::vector<float> weights(3);
  std::vector<std::byte> bytes(24);
  EXPECT_THROW(narrow_exactly(weights, Dtype::kF64, bytes), Error);
  EXPECT_THROW(narrow_exactly(weights, Dtype::kF16, bytes), Error);
  EXPECT_THROW(narrow_exactly(weights, Dtype::kF32, std::span(bytes).first(11)), Error);
  EXPECT_EQ(narrow_exactly(weights, Dtype::kF32, std::span(bytes).first(12)), std::nullopt);
}

}  // namespace
}  // namespace weft::test
