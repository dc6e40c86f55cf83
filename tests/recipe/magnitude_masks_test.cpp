// Masks that are found by magnitude and stay.
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "weft/mask/verify.h"
#include "weft/recipe/layer_state.h"
#include "weft/recipe/recipe.h"

namespace weft::test {
namespace {

TEST(MagnitudeMasks, AFixedMaskKeepsNoZero) {
  // Rows that share: the first has a zero of its own, the last group has one non-zero.
  const std::vector<float> weights = {0, 5, 1, 3, 0, 0, -0.0f, 2,  //
                                      9, 6, 2, 1, 0, 0, 0,     0};
  for (const auto& [pattern, kept] :
       std::vector<std::pair<Pattern, std::vector<int>>>{{Pattern(2, 4),
                                                          {0, 1, 0, 1, 0, 0, 0, 1,  //
                                                           1, 1, 0, 0, 0, 0, 0, 0}},
                                                         {Pattern(3, 4),
                                                          {0, 1, 1, 1, 0, 0, 0, 1,  //
                                                           1, 1, 1, 0, 0, 0, 0, 0}}}) {
    const Recipe recipe = Recipe::parse("static+dense_head=0");
    LayerInput input;
    input.weights = weights.data();
    input.shape = {2, 8, 1};
    input.pattern = pattern;
    input.recipe = &recipe;
    LayerState state;
    bring_up_to_date(input, state);
    for (size_t i = 0; i < kept.size(); ++i) {
      EXPECT_EQ(state.forward.at(static_cast<int64_t>(i / 8), static_cast<int64_t>(i % 8)),
                kept[i] == 1)
          << pattern.str() << " " << i;
    }
  }
  // Others fill their groups.
  const Recipe ste = Recipe::parse("ste");
  LayerInput input;
  input.weights = weights.data();
  input.shape = {2, 8, 1};
  input.pattern = Pattern(2, 4);
  input.recipe = &ste;
  LayerState state;
  bring_up_to_date(input, state);
  EXPECT_EQ(state.forward.density(), 0.5);
}

// Every tap for itself, in the places of a row order: tiles that obey keep their weights, of the
// others the largest, and never a zero.
TEST(MagnitudeMasks, AFixedTransposableMaskKeepsTilesThatObey) {
  const Recipe recipe = Recipe::parse("static+forward=transposable+dense_head=0");
  const std::vector<float> ring = {0, 1, 1, 0, 1, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0};
  for (const int64_t taps : {1, 3}) {
    for (const bool ordered : {false, true}) {
      const WeightShape shape{ordered ? 16 : 8, 8, taps};
      const Pattern pattern(2, 4, ordered ? 2 : 1);
      std::vector<int64_t> order;
      for (int64_t i = 0; ordered && i < 16; ++i) order.push_back((5 * i + 3) % 16);
      const auto row_at = [&](int64_t place) {
        return ordered ? order[static_cast<size_t>(place)] : place;
      };
      // Rings in the first places, which obey; the others are full, but for one zero.
      std::vector<float> weights(static_cast<size_t>(shape.outs * shape.cols()));
      const int64_t half = shape.outs / 2;
      const auto index = [&](int64_t place, int64_t col) {
        return static_cast<size_t>(row_at(place) * shape.cols() + col);
      };
      for (int64_t place = 0; place < shape.outs; ++place) {
        for (int64_t col = 0; col < shape.cols(); ++col) {
          weights[index(place, col)] =
              place < half ? ring[static_cast<size_t>(place % 4 * 4 + col / taps % 4)]
                           : static_cast<float>(1 + (place * 7 + col * 3) % 5);
        }
      }
      weights[index(half, 2 * taps)] = 0.0f;
      LayerInput input;
      input.weights = weights.data();
      input.shape = shape;
      input.pattern = pattern;
      input.recipe = &recipe;
      LayerState state;
      state.row_order = order;
      bring_up_to_date(input, state);
      EXPECT_EQ(count_groups_in(state.forward, shape, pattern, order).violations, 0);
      EXPECT_EQ(count_groups_out(state.forward, shape, pattern, order).violations, 0);
      for (int64_t place = 0; place < shape.outs; ++place) {
        for (int64_t col = 0; col < shape.cols(); ++col) {
          const bool zero = weights[index(place, col)] == 0.0f;
          if (place < half || zero) {
            EXPECT_EQ(state.forward.at(row_at(place), col), !zero) << place << ' ' << col;
          }
        }
      }
      EXPECT_GT(state.forward.count(), taps * half * 6);
    }
  }
}

}  // namespace
}  // namespace weft::test
