// bf16 storage: rounding and expanding, of rows and in transposes.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernel/bf16_matrix.h"
#include "weft/core/transpose.h"
#include "weft/kernel/bf16_rows.h"

namespace weft::test {
namespace {

TEST(Bf16Comparator, FindsWhatIsWrong) {
  ExpectedMatrix want(1, 3);
  want.add(0, 0, 1000, 1), want.add(0, 1, 259, 1), want.add(0, 2, NAN, 1);
  Bf16Matrix got(1, 3);
  const auto set = [&](float a, float b, float c) {
    got.view().at(0, 0) = to_bf16(a), got.view().at(0, 1) = to_bf16(b);
    got.view().at(0, 2) = to_bf16(c);
  };
  set(1000, 260, NAN);  // 259 is between 258 and 260, which is even
  EXPECT_EQ(bf16_mismatch(got, want, Data::kIntegers), "");
  set(1000, 258, NAN);
  EXPECT_NE(bf16_mismatch(got, want, Data::kIntegers), "");
  EXPECT_EQ(bf16_mismatch(got, want, Data::kFloats), "") << "half a unit is within the bound";
  set(1008, 260, NAN);
  EXPECT_NE(bf16_mismatch(got, want, Data::kFloats), "");
  set(1000, 260, 1);
  EXPECT_NE(bf16_mismatch(got, want, Data::kFloats), "");
}

// ---- numbers

TEST(Bf16Rows, ExpandEveryNumberExactly) {
  std::vector<Bf16> all(1 << 16);
  for (size_t i = 0; i < all.size(); ++i) all[i].bits = static_cast<uint16_t>(i);
  for_each_isa([&](const std::string& isa) {
    std::vector<float> wide(all.size());
    expand_here(all.data(), static_cast<int64_t>(all.size()), wide.data());
    std::vector<Bf16> back(all.size());
    round_here(wide.data(), static_cast<int64_t>(all.size()), back.data());
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(wide[i]), static_cast<uint32_t>(i) << 16) << isa;
      ASSERT_EQ(back[i], to_bf16(wide[i])) << isa << ", " << i;
      ASSERT_TRUE(back[i] == all[i] || (std::isnan(wide[i]) && std::isnan(to_float(back[i]))))
          << isa << ", " << i;
    }
  });
}

TEST(Bf16Rows, RoundToTheNearestTiesToEven) {
  std::vector<float> wide;
  for (const uint32_t upper : {0x3f80u, 0x3f81u, 0xbf80u, 0x0000u, 0x8001u, 0x7f7fu, 0x7f80u,
                               0xff80u, 0x7fc0u, 0x7f81u, 0xffffu, 0x007fu}) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      wide.push_back(std::bit_cast<float>(upper << 16 | lower));
    }
  }
  Dice dice(1);
  while (wide.size() < 5000) {
    wide.push_back(std::bit_cast<float>(static_cast<uint32_t>(dice.next())));
  }
  EXPECT_EQ(to_float(to_bf16(257.0f)), 256.0f);
  EXPECT_EQ(to_float(to_bf16(259.0f)), 260.0f);
  for_each_isa([&](const std::string& isa) {
    std::vector<Bf16> narrow(wide.size());
    round_here(wide.data(), static_cast<int64_t>(wide.size()), narrow.data());
    for (size_t i = 0; i < wide.size(); ++i) {
      ASSERT_EQ(narrow[i].bits, to_bf16(wide[i]).bits)
          << isa << std::hex << ", " << std::bit_cast<uint32_t>(wide[i]);
    }
  });
}

TEST(Bf16Rows, AreRightForEverySizeAndGap) {
  const ThreadsAsBefore guard;
  const std::vector<std::pair<int64_t, int64_t>> sizes = {
      {0, 5},    {5, 0},  {1, 1},  {3, 7},  {2, 8},     {2, 9},
      {1, 15},   {3, 16}, {2, 17}, {5, 33}, {3, 70001},  // rows that are cut
      {70, 1200}};
  for (const auto& [rows, cols] : sizes) {
    for (const int64_t gap : {0, 3}) {
      for (const int count : {1, 3}) {
        set_threads(count);
        TestMatrix m(rows, cols, gap);
        Dice dice(static_cast<uint64_t>(rows * cols));
        m.fill(Data::kFloats, dice);
        const Bf16Matrix want(m);
        Bf16Matrix got(rows, cols, 2 * gap);
        round_to_bf16(m.view(), got.view());
        ASSERT_EQ(got.bits(), want.bits()) << rows << " x " << cols << ", gap " << gap;
        ASSERT_FALSE(got.damaged());
        TestMatrix wide(rows, cols, gap);
        expand(got.view(), wide.view());
        round_values(m);
        ASSERT_TRUE(same_bits(wide, m)) << rows << " x " << cols << ", gap " << gap;
        ASSERT_EQ(wide.damage(), "");
      }
    }
  }
}

TEST(Bf16Transpose, ExpandsAndRounds) {
  for_each_isa([&](const std::string& isa) {
    for (const int64_t rows : {0, 1, 3, 4, 5, 7, 8, 9, 16, 17}) {
      for (const int64_t cols : {0, 1, 4, 7, 8, 9, 17}) {
        Dice dice(static_cast<uint64_t>(rows * 100 + cols));
        TestMatrix m(rows, cols, 3), bias(1, rows);
        m.fill(Data::kFloats, dice);
        bias.fill(Data::kFloats, dice);
        const Bf16Matrix narrow(m);
        TestMatrix wide(cols, rows, 2);
        transpose(TransposeOf<Bf16, float>{narrow.data(), narrow.stride, rows, cols, wide.data(),
                                           wide.stride});
        ASSERT_EQ(wide.damage(), "") << isa;
        for (const bool with_bias : {false, true}) {
          for (const float beta : {0.0f, 1.0f}) {
            Bf16Matrix y(cols, rows, 1);
            for (int64_t c = 0; c < cols; ++c) {
              for (int64_t r = 0; r < rows; ++r) {
                y.view().at(c, r) = to_bf16(beta == 0 ? NAN : static_cast<float>(r - c));
              }
            }
            transpose_into(
                TransposeOf<float, Bf16>{m.data(), m.stride, rows, cols, y.data(), y.stride},
                with_bias ? bias.data() : nullptr, beta);
            ASSERT_FALSE(y.damaged()) << isa;
            for (int64_t c = 0; c < cols; ++c) {
              for (int64_t r = 0; r < rows; ++r) {
                ASSERT_EQ(wide.at(c, r), narrow.at(r, c)) << isa;
                float sum = m.at(r, c);
                if (with_bias) sum += bias.at(0, r);
                if (beta != 0) sum += static_cast<float>(r - c);
                ASSERT_EQ(y.view().at(c, r), to_bf16(sum)) << isa << ", " << r << ", " << c;
              }
            }
          }
        }
      }
    }
  });
}

}  // namespace
}  // namespace weft::test
