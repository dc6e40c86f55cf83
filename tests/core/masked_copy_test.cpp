// Copies of what a mask keeps, apart and in place, and rounded to bf16.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support.h"
#include "weft/core/bf16.h"
#include "weft/core/mask.h"
#include "weft/core/masked_copy.h"
#include "weft/core/rng.h"

namespace weft {
namespace {

using test::test_seed;

// What a mask does not keep is plus zero, whatever it was; what it keeps has the same bits.
template <typename T>
void expect_masked_copy(int64_t rows, int64_t cols) {
  constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
  const Rng rng(test_seed(), 3);
  uint64_t draw = 0;
  std::vector<T> from(static_cast<size_t>(rows * cols));
  Mask mask(rows, cols);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const double u = rng.uniform(draw++);
    from[static_cast<size_t>(i)] = u < 0.2 ? kNan : u < 0.4 ? T{-1} : static_cast<T>(u);
    mask.set(i / cols, i % cols, rng.uniform(draw++) < 0.5);
  }
  std::vector<T> apart(from.size() + 1, T{7}), in_place = from;
  masked_copy(from.data(), mask, apart.data());
  masked_copy(in_place.data(), mask, in_place.data());
  for (int64_t i = 0; i < rows * cols; ++i) {
    const auto at = static_cast<size_t>(i);
    const T wanted = mask.at(i / cols, i % cols) ? from[at] : T{0};
    ASSERT_EQ(std::memcmp(&apart[at], &wanted, sizeof(T)), 0)
        << rows << " x " << cols << ", " << i << ", seed " << test_seed();
    ASSERT_EQ(std::memcmp(&in_place[at], &wanted, sizeof(T)), 0);
  }
  EXPECT_EQ(apart.back(), T{7});
  if constexpr (std::is_same_v<T, float>) {
    std::vector<Bf16> rounded(from.size());
    masked_copy(from.data(), mask, rounded.data());
    for (size_t i = 0; i < from.size(); ++i) ASSERT_EQ(rounded[i], to_bf16(apart[i])) << i;
  }
}

TEST(MaskedCopy, KeepsBitsAndClearsTheRestAndRoundsWhenAsked) {
  for (const auto& [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{0, 5},
                                                                           {5, 0},
                                                                           {1, 1},
                                                                           {3, 4},
                                                                           {2, 63},
                                                                           {5, 64},
                                                                           {3, 130},
                                                                           {7, 201},
                                                                           {600, 300},
                                                                           {2, 70000}}) {
    expect_masked_copy<float>(rows, cols);
    expect_masked_copy<double>(rows, cols);
  }
}

}  // namespace
}  // namespace weft
