// What a caller may give a layer instead of plain weights: compact ones, or the operand itself.
#include <gtest/gtest.h>

#include "tests/model_files.h"
#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/layer/conv_layer.h"
#include "weft/layer/linear_layer.h"
#include "weft/mask/solver.h"
#include "weft/pack/compact.h"

namespace weft {
namespace {

using test::contains;
using test::gaussian;
using test::message_of;

LayerSettings settings_of(const std::string& recipe, PlanMode mode = PlanMode::kSparse) {
  LayerSettings settings;
  settings.recipe = Recipe::parse(recipe);
  settings.total_steps = 100;
  settings.planner = std::make_shared<Planner>(mode, "");
  return settings;
}

// Columns 0, 2 and 5 are kept: the second group of 2:4, which is short, has a slot to spare.
TEST(Compact, KeepsTheOrderAndFillsUpWithZeros) {
  const WeightShape shape{1, 7, 1};
  const Pattern pattern(2, 4);
  Mask mask(1, 7);
  for (const int64_t col : {0, 2, 5}) mask.set(0, col, true);
  ASSERT_EQ(compact_size(shape, pattern), 4);
  const std::vector<float> values = {1, 2, 3, 4, 5, 6, 7};
  std::vector<float> found(4, -1.0f);
  compact(values.data(), mask, shape, pattern, found.data());
  EXPECT_EQ(found, (std::vector<float>{1, 3, 6, 0}));
  std::vector<float> whole(7, -1.0f);
  expand_compact(found.data(), mask, shape, pattern, whole.data());
  EXPECT_EQ(whole, (std::vector<float>{1, 0, 3, 0, 0, 6, 0}));
}

TEST(Compact, ComesBackFromEveryShape) {
  for (const WeightShape& shape :
       {WeightShape{5, 12, 1}, WeightShape{3, 9, 6}, WeightShape{4, 1, 9}}) {
    for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4), Pattern(4, 8)}) {
      const std::vector<float> w = gaussian(shape.outs * shape.cols(), 1);
      const Mask mask = find_mask(solver("magnitude"), w.data(), shape, pattern);
      std::vector<float> small(static_cast<size_t>(compact_size(shape, pattern)));
      std::vector<float> whole(w.size()), masked(w.size());
      compact(w.data(), mask, shape, pattern, small.data());
      expand_compact(small.data(), mask, shape, pattern, whole.data());
      for (int64_t r = 0; r < shape.outs; ++r) {
        for (int64_t c = 0; c < shape.cols(); ++c) {
          const auto i = static_cast<size_t>(r * shape.cols() + c);
          masked[i] = mask.at(r, c) ? w[i] : 0.0f;
        }
      }
      EXPECT_EQ(whole, masked) << pattern.str();
    }
  }
}

TEST(Compact, RefusesAMaskThatKeepsTooMuch) {
  const WeightShape shape{2, 4, 1};
  Mask mask(2, 4);
  for (const int64_t col : {0, 1, 3}) mask.set(1, col, true);
  const std::vector<float> w(8);
  std::vector<float> out(4);
  EXPECT_TRUE(
      contains(message_of([&] { compact(w.data(), mask, shape, Pattern(2, 4), out.data()); }),
               "row 1: more than 2 kept"));
}

constexpr int64_t kTokens = 24, kIns = 20, kOuts = 16;

// y and dx of one pass.
std::vector<float> pass_of(LinearLayer& layer, const LayerWeights& weights) {
  const std::vector<float> x = gaussian(kTokens * kIns, 2), g = gaussian(kTokens * kOuts, 3);
  std::vector<float> y(kTokens * kOuts), dx(kTokens * kIns);
  layer.forward<float>(weights, {x.data(), kTokens, kIns}, nullptr, {y.data(), kTokens, kOuts});
  layer.backward_data<float>(weights, {g.data(), kTokens, kOuts}, {dx.data(), kTokens, kIns});
  y.insert(y.end(), dx.begin(), dx.end());
  return y;
}

TEST(GivenWeights, CompactOnesComputeTheSame) {
  for (const PlanMode mode : {PlanMode::kSparse, PlanMode::kDense}) {
    LinearLayer layer(kOuts, kIns);
    layer.configure(settings_of("static+dense_head=0", mode));
    const std::vector<float> w = gaussian(kOuts * kIns, 1);
    layer.begin_pass(w.data(), /*training=*/true);
    const std::vector<float> expected = pass_of(layer, w.data());
    std::vector<float> small(static_cast<size_t>(compact_size(layer.shape(), Pattern(2, 4))));
    compact(w.data(), layer.state().forward, layer.shape(), Pattern(2, 4), small.data());
    LayerWeights compacted;
    compacted.compact = small.data();
    layer.forget_operands();
    layer.begin_pass(compacted, /*training=*/true);
    EXPECT_EQ(pass_of(layer, compacted), expected);
    // A whole step without the others.
    layer.count_step();
    for (float& value : small) value *= 2.0f;
    layer.bring_up_to_date(compacted);
    layer.begin_pass(compacted, /*training=*/true);
    std::vector<float> twice = expected;
    for (float& value : twice) value *= 2.0f;
    EXPECT_EQ(pass_of(layer, compacted), twice);
  }
}

TEST(GivenWeights, CompactOnesNeedAMaskThatStays) {
  LinearLayer layer(kOuts, kIns);
  layer.configure(settings_of("sr-ste"));
  const std::vector<float> w = gaussian(kOuts * kIns, 1);
  layer.begin_pass(w.data(), /*training=*/true);
  LayerWeights compacted;
  compacted.compact = w.data();
  layer.forget_operands();
  EXPECT_TRUE(contains(message_of([&] { pass_of(layer, compacted); }), "need a fixed mask"));
}

// Of a recipe that has values of its own, and of one that has not.
TEST(GivenWeights, AnOperandReplacesWhatTheRecipeMakes) {
  for (const char* recipe : {"s-ste", "sr-ste", "s-ste+fp8"}) {
    LinearLayer layer(kOuts, kIns);
    layer.configure(settings_of(recipe));
    const std::vector<float> w = gaussian(kOuts * kIns, 1);
    layer.begin_pass(w.data(), /*training=*/true);
    const std::vector<float> expected = pass_of(layer, w.data());
    std::vector<float> operand(w.size());
    layer.effective_values(w.data(), operand.data());
    LayerWeights given(w.data());
    given.operand = operand.data();
    layer.forget_operands();
    EXPECT_EQ(pass_of(layer, given), expected) << recipe;
    const std::vector<float> zeros(w.size());
    given.operand = zeros.data();
    layer.forget_operands();
    EXPECT_EQ(pass_of(layer, given), std::vector<float>(expected.size())) << recipe;
  }
}

// A state is not trusted: its mask is checked like one that is given.
TEST(GivenWeights, AStateWithAMaskAgainstThePatternIsRefused) {
  LinearLayer layer(kOuts, kIns);
  layer.configure(settings_of("sr-ste"));
  const std::vector<float> w = gaussian(kOuts * kIns, 1);
  layer.begin_pass(w.data(), /*training=*/true);
  std::vector<StateArray> arrays = layer.save_state();
  LinearLayer other(kOuts, kIns);
  other.configure(settings_of("sr-ste"));
  EXPECT_NO_THROW(other.load_state(arrays));
  for (StateArray& array : arrays) {
    if (array.name == "mask") {
      for (int64_t& word : array.values) word = (int64_t{1} << kIns) - 1;  // everything is kept
    }
  }
  const std::string problem = message_of([&] { other.load_state(arrays); });
  EXPECT_TRUE(contains(problem, "violates 2:4")) << problem;
}

}  // namespace
}  // namespace weft
