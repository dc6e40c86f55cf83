// Packs of one operand: each is made once, whichever others are made in between.
#include "weft/layer/operands.h"

#include <gtest/gtest.h>

#include "tests/model_files.h"

namespace weft {
namespace {

TEST(WeightPack, KeepsAPackForEachArithmetic) {
  constexpr int64_t kOuts = 64, kIns = 64;
  const std::vector<float> values = test::gaussian(kOuts * kIns, 1);
  const std::vector<float> zeros(values.size(), 0.0f);
  Mask mask(kOuts, kIns);
  for (int64_t r = 0; r < kOuts; ++r) {
    for (int64_t c = r % 2; c < kIns; c += 2) mask.set(r, c, true);
  }
  Operand operand;
  operand.mask = &mask;
  operand.pattern = Pattern(2, 4, 16);
  operand.precision = Precision::kBf16;
  for (const Product product : {Product::kForward, Product::kBackwardData}) {
    WeightPack packs(product);
    const auto pack = [&](const std::vector<float>& w, Precision compute) {
      const PackedMatrix& made = packs.sparse(operand, w.data(), {kOuts, kIns, 1}, compute);
      const std::span<const std::byte> bytes = made.bytes();
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    const auto fp32 = pack(values, Precision::kFp32), bf16 = pack(values, Precision::kBf16);
    EXPECT_TRUE(packs.has(true, Precision::kFp32) && packs.has(true, Precision::kBf16));
    // Other values are not looked at: nothing is packed again.
    EXPECT_EQ(pack(zeros, Precision::kFp32), fp32);
    EXPECT_EQ(pack(zeros, Precision::kBf16), bf16);
    packs.forget();
    EXPECT_FALSE(packs.has(true, Precision::kFp32) || packs.has(true, Precision::kBf16));
    EXPECT_NE(pack(zeros, Precision::kFp32), fp32);
    EXPECT_NE(pack(zeros, Precision::kBf16), bf16);
  }
}

}  // namespace
}  // namespace weft
