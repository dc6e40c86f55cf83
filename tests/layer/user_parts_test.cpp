// Parts of a recipe that a program adds to those of weft.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/layer/network.h"
#include "weft/core/error.h"
#include "weft/layer/linear_layer.h"

namespace weft::test {
namespace {

// Keeps the first `keep` weights of every group, whatever they are.
void find_first(const LayerInput& input, LayerState& state) {
  state.forward = Mask(input.shape.outs, input.shape.cols());
  for (int64_t r = 0; r < input.shape.outs; ++r) {
    for (int64_t c = 0; c < input.shape.cols(); ++c) {
      state.forward.set(r, c, c % input.pattern.group() < input.pattern.keep());
    }
  }
}

// Pulls the sign of pruned weights, not their size.
template <typename T>
void decay_by_sign(const DecayCall<T>& call) {
  for (int64_t r = 0; r < call.mask.rows(); ++r) {
    for (int64_t c = 0; c < call.mask.cols(); ++c) {
      const int64_t at = r * call.mask.cols() + c;
      if (call.mask.at(r, c)) continue;
      call.gradient[at] += static_cast<T>(call.lambda) * (call.weights[at] > 0 ? T(1) : T(-1));
    }
  }
}

// Drops the first output of every four going backward, and claims more than it may.
void find_backward(const LayerInput& input, const float*, LayerState& state) {
  state.backward = Mask(input.shape.outs, input.shape.cols());
  for (int64_t r = 0; r < input.shape.outs; ++r) {
    for (int64_t c = 0; c < input.shape.cols(); ++c) state.backward.set(r, c, r % 4 != 0);
  }
}

void double_values(const LayerInput& input, const LayerState& state, float* out) {
  for (int64_t i = 0; i < input.shape.outs * input.shape.cols(); ++i) {
    out[i] = state.forward.at(i / input.shape.cols(), i % input.shape.cols()) ? 2 * input.weights[i]
                                                                              : 0.0f;
  }
}
void double_values_in_double(const LayerInput&, const LayerState&, const double*, double*) {}

void add_parts_of_a_user() {
  [[maybe_unused]] static const bool once = [] {
    add_part(ForwardPart{.name = "first-of-group", .by_magnitude = true, .find = find_first});
    add_part(ForwardPart{.name = "twice",
                         .by_magnitude = true,
                         .find = find_first,
                         .values = double_values,
                         .values_in_double = double_values_in_double});
    add_part(BackwardPart{.name = "three-of-four", .find = find_backward});
    add_part(GradientPart{.name = "my-mvue", .sampler = Sampler::kExact});
    add_part(DecayPart{
        .name = "sign", .apply = decay_by_sign<float>, .apply_in_double = decay_by_sign<double>});
    return true;
  }();
}

TEST(Parts, OfAUserTrainLikeThoseOfThePapers) {
  add_parts_of_a_user();
  Network network(
      settings_of("sr-ste+forward=first-of-group+decay=sign+gradient=my-mvue+lambda=1e-3", "2:4"));
  double begin = 0.0, end = 0.0;
  for (int64_t step = 0; step < kSteps; ++step) {
    const double loss = network.loss_after_step(step);
    if (step < 6) begin += loss;
    if (step >= kSteps - 6) end += loss;
  }
  EXPECT_LT(end, begin);
  const std::vector<float> w = network.effective(0);
  for (size_t i = 0; i < w.size(); ++i) EXPECT_EQ(w[i] != 0.0f, i % 4 < 2) << i;
}

// Each of the parts shows in the numbers of one step.
TEST(Parts, OfAUserAreAllCalled) {
  add_parts_of_a_user();
  const std::vector<float> w = gaussian(64, 1), g = gaussian(8 * 8, 2), x = gaussian(8 * 8, 3);
  LinearLayer layer(8, 8);
  layer.configure(settings_of(
      "sr-ste+forward=twice+backward=three-of-four+gradient=my-mvue+decay=sign+lambda=0.5", "2:4"));
  layer.begin_pass({w.data()}, true);
  std::vector<float> one(8, 0.0f), y(8), dx(8), dw(64), exact(64, 0.0f);
  one[1] = 1.0f;
  layer.forward<float>(w.data(), {one.data(), 1, 8}, nullptr, {y.data(), 1, 8});
  for (size_t o = 0; o < 8; ++o) EXPECT_EQ(y[o], 2 * w[o * 8 + 1]);
  for (const size_t out : {4u, 5u}) {
    std::vector<float> back(8, 0.0f);
    back[out] = 1.0f;
    layer.backward_data<float>(w.data(), {back.data(), 1, 8}, {dx.data(), 1, 8});
    for (size_t i = 0; i < 8; ++i) {
      // Never what the forward mask drops, whatever the part says.
      EXPECT_EQ(dx[i], out == 5 && i % 4 < 2 ? 2 * w[out * 8 + i] : 0.0f) << out << " " << i;
    }
  }
  layer.backward_weight<float>(w.data(), {g.data(), 8, 8}, {x.data(), 8, 8}, layer.next_pass(),
                               {dw.data(), 8, 8});
  for (size_t o = 0; o < 8; ++o) {
    for (size_t t = 0; t < 8; ++t) {
      for (size_t i = 0; i < 8; ++i) exact[o * 8 + i] += g[t * 8 + o] * x[t * 8 + i];
    }
  }
  double gap = 0.0;
  for (size_t i = 0; i < 64; ++i) gap = std::max<double>(gap, std::abs(dw[i] - exact[i]));
  EXPECT_GT(gap, 1e-2) << "a sample, not all of the gradient";
  std::vector<float> moved = w, before = dw;
  layer.add_decay(moved.data(), dw.data(), 0.1);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(dw[i] - before[i], i % 4 < 2 ? 0.0f : w[i] > 0 ? 0.5f : -0.5f, 1e-5) << i;
  }
}

TEST(Parts, ThatLackAFunctionOrHaveATakenNameAreRefused) {
  add_parts_of_a_user();
  EXPECT_THROW(add_part(ForwardPart{.name = "first-of-group", .find = find_first}), Error);
  EXPECT_THROW(add_part(ForwardPart{.name = "empty"}), Error);
  EXPECT_THROW(add_part(ForwardPart{.name = "half", .find = find_first, .values = double_values}),
               Error);
  EXPECT_THROW(add_part(ForwardPart{.name = "a+b", .find = find_first}), Error);
  EXPECT_THROW(add_part(BackwardPart{.name = "same again"}), Error);
  EXPECT_THROW(add_part(DecayPart{.name = "float-only", .apply = decay_by_sign<float>}), Error);
}

// A mask that is not found by magnitude is found at every step, whatever a recipe says of intervals.
TEST(Parts, AUnionInARecipeOfAFixedMaskIsStillRemovedFrom) {
  Network network(settings_of("static+forward=union+dense_head=0", "2:4"));
  for (int64_t step = 0; step < kSteps; ++step) network.loss_after_step(step);
  const std::vector<float> w = network.effective(0);
  for (size_t i = 0; i < w.size(); i += 4) {
    int kept = 0;
    for (size_t k = i; k < i + 4; ++k) kept += w[k] != 0.0f;
    ASSERT_EQ(kept, 2) << i;
  }
}

}  // namespace
}  // namespace weft::test
