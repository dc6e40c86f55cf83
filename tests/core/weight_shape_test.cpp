// The shapes of weights: linear layers and convolutions.
#include <gtest/gtest.h>

#include <vector>

#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/core/weight_shape.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

TEST(WeightShape, TakesLinearAndConvolution) {
  const std::vector<int64_t> linear = {8, 5}, convolution = {8, 5, 3, 2}, vector = {8};
  EXPECT_EQ(WeightShape::of(linear).cols(), 5);
  EXPECT_EQ(WeightShape::of(convolution).taps, 6);
  EXPECT_EQ(WeightShape::of(convolution).cols(), 30);
  EXPECT_TRUE(contains(message_of([&] { WeightShape::of(vector); }), "accepted are 2"));
}

TEST(WeightShape, IndexOfAColumnIsWhereTheTensorHasIt) {
  const std::vector<int64_t> linear = {2, 5}, convolution = {2, 3, 4, 5}, empty = {2, 3, 0, 5};
  EXPECT_EQ(WeightShape::index_of(linear, 1, 4), (std::vector<int64_t>{1, 4}));
  const auto index = [&](int64_t out, int64_t col) {
    return WeightShape::index_of(convolution, out, col);
  };
  int64_t place = 0;  // in the memory of the tensor
  for (int64_t o = 0; o < 2; ++o) {
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t y = 0; y < 4; ++y) {
        for (int64_t x = 0; x < 5; ++x, ++place) {
          EXPECT_EQ(index(place / 60, place % 60), (std::vector<int64_t>{o, i, y, x}));
        }
      }
    }
  }
  EXPECT_TRUE(contains(message_of([&] { index(2, 0); }), "(2, 0) is not in a matrix of 2 x 60"));
  EXPECT_THROW(index(0, 60), Error);
  EXPECT_THROW(index(-1, 0), Error);
  EXPECT_THROW(index(0, -1), Error);
  EXPECT_THROW(WeightShape::index_of(empty, 0, 0), Error);
}

}  // namespace
}  // namespace weft
