// Random numbers: the known answers of Philox, and the distributions.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "tests/support.h"
#include "weft/core/rng.h"

namespace weft {
namespace {

using test::test_seed;

// The known answers that Random123 publishes for philox4x32 with ten rounds (kat_vectors):
// counter = (index, stream), key = seed.
TEST(Rng, GivesTheKnownAnswersOfPhilox) {
  using Words = std::array<uint32_t, 4>;
  const uint64_t ones = ~uint64_t{0};
  EXPECT_EQ(Rng(0, 0).words(0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Rng(ones, ones).words(ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Rng(0x299f31d0a4093822, 0x0370734413198a2e).words(0x85a308d3243f6a88),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, IsAPureFunctionOfSeedStreamAndIndex) {
  const uint64_t seed = test_seed();
  const Rng rng(seed, 5);
  std::set<uint64_t> drawn;
  for (uint64_t index = 0; index < 1000; ++index) {
    ASSERT_EQ(rng.bits(index), Rng(seed, 5).bits(index)) << "index " << index;
    drawn.insert(rng.bits(index));
    drawn.insert(Rng(seed, 6).bits(index));
    drawn.insert(Rng(seed, 5 + (uint64_t{1} << 32)).bits(index));
    drawn.insert(Rng(seed + 1, 5).bits(index));
    drawn.insert(Rng(seed + (uint64_t{1} << 32), 5).bits(index));
    drawn.insert(rng.bits(index + (uint64_t{1} << 32)));
  }
  EXPECT_EQ(drawn.size(), 6000u) << "two of (seed, stream, index) gave the same 64 bits";
}

// With n draws, a mean of x^k lies within five standard errors but once in two million runs; the
// standard error is sqrt(variance of x^k / n).
TEST(Rng, MomentsOfUniformAndNormalAreWithinFiveStandardErrors) {
  const Rng rng(test_seed(), 2);
  constexpr uint64_t kDraws = 200'000;
  std::array<double, 3> uniform{};
  std::array<double, 5> normal{};
  for (uint64_t index = 0; index < kDraws; ++index) {
    const double u = rng.uniform(index), z = rng.normal(index);
    ASSERT_TRUE(u >= 0 && u < 1) << u;
    ASSERT_TRUE(std::isfinite(z)) << z;
    for (size_t k = 1; k < uniform.size(); ++k) uniform[k] += std::pow(u, k) / kDraws;
    for (size_t k = 1; k < normal.size(); ++k) normal[k] += std::pow(z, k) / kDraws;
  }
  const auto bound = [](double variance) { return 5 * std::sqrt(variance / kDraws); };
  EXPECT_NEAR(uniform[1], 1.0 / 2, bound(1.0 / 12));
  EXPECT_NEAR(uniform[2], 1.0 / 3, bound(4.0 / 45));
  EXPECT_NEAR(normal[1], 0, bound(1));
  EXPECT_NEAR(normal[2], 1, bound(2));
  EXPECT_NEAR(normal[3], 0, bound(15));
  EXPECT_NEAR(normal[4], 3, bound(96));
}

TEST(Rng, TheTwoNormalsOfAPairAreUncorrelated) {
  const Rng rng(test_seed(), 3);
  constexpr int kPairs = 100'000;
  double product = 0;
  for (uint64_t index = 0; index < kPairs; ++index) {
    const auto [a, b] = rng.normals(index);
    ASSERT_EQ(rng.normal(2 * index), a);
    ASSERT_EQ(rng.normal(2 * index + 1), b);
    product += a * b / kPairs;
  }
  EXPECT_NEAR(product, 0, 5 / std::sqrt(kPairs));
}

TEST(Rng, BelowStaysInRangeAndReachesEveryNumber) {
  const Rng rng(test_seed(), 4);
  for (const uint64_t bound : {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{10}}) {
    std::vector<int> seen(bound);
    for (uint64_t index = 0; index < 10'000; ++index) ++seen.at(rng.below(index, bound));
    const double expected = 10'000.0 / static_cast<double>(bound);
    for (const int count : seen) EXPECT_NEAR(count, expected, 5 * std::sqrt(expected)) << bound;
  }
  for (const uint64_t bound : {(uint64_t{1} << 63) + 1, ~uint64_t{0}}) {
    for (uint64_t index = 0; index < 1000; ++index) ASSERT_LT(rng.below(index, bound), bound);
  }
}

}  // namespace
}  // namespace weft
