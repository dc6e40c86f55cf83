// Layers that train without torch: a network of two linear layers under every recipe, with plain
// gradient descent written here; and what a framework may do with a layer.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/model_files.h"
#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/layer/conv_layer.h"
#include "weft/layer/linear_layer.h"

namespace weft::test {
namespace {

constexpr int64_t kSteps = 24;

LayerSettings settings_of(const std::string& recipe, const std::string& pattern,
                          PlanMode mode = PlanMode::kSparse) {
  LayerSettings settings;
  settings.recipe = Recipe::parse(recipe);
  settings.pattern = Pattern::parse(pattern);
  settings.total_steps = kSteps;
  settings.seed = 5;
  settings.planner = std::make_shared<Planner>(mode, "");
  return settings;
}

// Weights that move in memory with every step, as those of a framework may.
class MovingWeights {
 public:
  MovingWeights(int64_t size, uint64_t seed, float scale) : values_(gaussian(size, seed)) {
    for (float& value : values_) value *= scale;
  }
  float* data() { return values_.data(); }
  void move() { values_ = std::vector<float>(values_); }
  void descend(const std::vector<float>& gradient, float rate) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] -= rate * gradient[i];
    move();
  }

 private:
  std::vector<float> values_;
};

// y = W2 relu(W1 x), trained to be what another such network is.
class Network {
 public:
  static constexpr int64_t kTokens = 48, kIns = 24, kHidden = 32, kOuts = 16;

  explicit Network(const LayerSettings& settings) : first_(kHidden, kIns), second_(kOuts, kHidden) {
    for (LinearLayer* layer : {&first_, &second_}) {
      LayerSettings own = settings;
      own.number = layer == &second_;
      layer->configure(own);
      if (const auto shape = layer->score_shape()) {
        scores_.emplace_back(static_cast<size_t>(shape->size()));
        layer->first_scores(scores_.back());
      }
    }
  }

  double loss_after_step(int64_t step) {
    const std::vector<float> x = gaussian(kTokens * kIns, 100 + static_cast<uint64_t>(step));
    const std::vector<float> target = product(x, kTokens, teacher_, kOuts, kIns);
    begin(/*training=*/true);
    forward(x);
    std::vector<float> g(y_.size());
    double loss = 0.0;
    for (size_t i = 0; i < g.size(); ++i) {
      const float gap = y_[i] - target[i];
      loss += 0.5 * gap * gap / static_cast<double>(kTokens);
      g[i] = gap / static_cast<float>(kTokens);
    }
    backward(x, g);
    return loss;
  }

  std::vector<StateArray> state(int layer) { return (layer == 0 ? first_ : second_).save_state(); }
  std::vector<float> effective(int layer) {
    LinearLayer& one = layer == 0 ? first_ : second_;
    MovingWeights& w = layer == 0 ? w1_ : w2_;
    std::vector<float> values(static_cast<size_t>(one.shape().outs * one.shape().ins));
    one.effective_values(w.data(), values.data());
    return values;
  }
  Layer& layer(int number) { return number == 0 ? first_ : second_; }

 private:
  static std::vector<float> product(const std::vector<float>& x, int64_t tokens,
                                    const std::vector<float>& w, int64_t outs, int64_t ins) {
    std::vector<float> y(static_cast<size_t>(tokens * outs));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t o = 0; o < outs; ++o) {
        double sum = 0.0;
        for (int64_t i = 0; i < ins; ++i) {
          sum += static_cast<double>(x[static_cast<size_t>(t * ins + i)]) *
                 w[static_cast<size_t>(o * ins + i)];
        }
        y[static_cast<size_t>(t * outs + o)] = static_cast<float>(sum);
      }
    }
    return y;
  }

  LayerWeights weights(int number) {
    LayerWeights view{(number == 0 ? w1_ : w2_).data()};
    if (!scores_.empty()) view.scores = scores_[static_cast<size_t>(number)];
    return view;
  }

  void begin(bool training) {
    first_.begin_pass(weights(0), training);
    second_.begin_pass(weights(1), training);
  }

  void forward(const std::vector<float>& x) {
    hidden_.assign(kTokens * kHidden, 0.0f);
    y_.assign(kTokens * kOuts, 0.0f);
    first_.forward<float>(w1_.data(), {x.data(), kTokens, kIns}, nullptr,
                          {hidden_.data(), kTokens, kHidden});
    for (float& value : hidden_) value = std::max(value, 0.0f);
    second_.forward<float>(w2_.data(), {hidden_.data(), kTokens, kHidden}, nullptr,
                           {y_.data(), kTokens, kOuts});
  }

  void backward(const std::vector<float>& x, const std::vector<float>& g) {
    const Pass first_pass = first_.next_pass(), second_pass = second_.next_pass();
    std::vector<float> dw1(kHidden * kIns), dw2(kOuts * kHidden), dh(kTokens * kHidden);
    w1_.move();  // at another address than going forward
    w2_.move();
    second_.backward_data<float>(w2_.data(), {g.data(), kTokens, kOuts},
                                 {dh.data(), kTokens, kHidden});
    for (size_t i = 0; i < dh.size(); ++i) dh[i] = hidden_[i] > 0 ? dh[i] : 0.0f;
    second_.backward_weight<float>(w2_.data(), {g.data(), kTokens, kOuts},
                                   {hidden_.data(), kTokens, kHidden}, second_pass,
                                   {dw2.data(), kOuts, kHidden});
    first_.backward_weight<float>(w1_.data(), {dh.data(), kTokens, kHidden},
                                  {x.data(), kTokens, kIns}, first_pass,
                                  {dw1.data(), kHidden, kIns});
    step(first_, 0, w1_, dw1);
    step(second_, 1, w2_, dw2);
  }

  void step(LinearLayer& layer, int number, MovingWeights& w, std::vector<float>& dw) {
    constexpr float kRate = 0.02f;
    if (layer.trains_scores()) {
      std::vector<float>& scores = scores_[static_cast<size_t>(number)];
      std::vector<float> ds(scores.size());
      layer.score_gradient(w.data(), dw.data(), ds.data());
      for (size_t i = 0; i < ds.size(); ++i) scores[i] -= kRate * ds[i];
    }
    layer.add_decay(w.data(), dw.data(), kRate);
    w.descend(dw, kRate);
    layer.count_step();
    layer.bring_up_to_date(weights(number));
  }

  LinearLayer first_, second_;
  MovingWeights w1_{kHidden * kIns, 1, 0.2f}, w2_{kOuts * kHidden, 2, 0.2f};
  std::vector<float> teacher_ = gaussian(kOuts * kIns, 3);
  std::vector<std::vector<float>> scores_;
  std::vector<float> hidden_, y_;
};

std::vector<std::string> every_recipe() {
  std::vector<std::string> names;
  for (const Recipe& recipe : recipes()) names.push_back(recipe.name);
  for (const char* more : {"s-ste+backward=bi-mask", "t-sr-ste+fp8", "sr-ste+decay=decoupled",
                           "static+forward=transposable"}) {
    names.push_back(more);
  }
  return names;
}

TEST(LayerWithoutTorch, EveryRecipeLearns) {
  for (const std::string& recipe : every_recipe()) {
    SCOPED_TRACE(recipe);
    Network network(settings_of(recipe, "2:4"));
    double first = 0.0, last = 0.0;
    for (int64_t step = 0; step < kSteps; ++step) {
      const double loss = network.loss_after_step(step);
      ASSERT_TRUE(std::isfinite(loss)) << step;
      if (step < 6) first += loss;
      if (step >= kSteps - 6) last += loss;
    }
    EXPECT_LT(last, 0.95 * first);
  }
}

TEST(LayerWithoutTorch, OperandsObeyThePattern) {
  for (const std::string& recipe : every_recipe()) {
    SCOPED_TRACE(recipe);
    Network network(settings_of(recipe, "2:4"));
    for (int64_t step = 0; step < kSteps / 2 + 2; ++step) network.loss_after_step(step);
    const Recipe parsed = Recipe::parse(recipe);
    for (const int number : {0, 1}) {
      ASSERT_EQ(network.layer(number).state().sparse(), !parsed.is_dense());
      if (parsed.is_dense()) continue;
      ASSERT_FALSE(network.layer(number).trains_scores());  // lbc has removed what it removes
      const std::vector<float> w = network.effective(number);
      for (size_t i = 0; i < w.size(); i += 4) {
        int kept = 0;
        for (size_t k = i; k < i + 4; ++k) kept += w[k] != 0.0f;
        ASSERT_EQ(kept, 2) << i;
      }
    }
  }
}

TEST(LayerWithoutTorch, ARunRepeatsAndResumesFromItsArraysToTheBit) {
  for (const char* recipe : {"t-sr-ste", "bi-mask", "lbc", "s-ste"}) {
    SCOPED_TRACE(recipe);
    Network a(settings_of(recipe, "2:4")), b(settings_of(recipe, "2:4"));
    for (int64_t step = 0; step < 9; ++step) {
      ASSERT_EQ(a.loss_after_step(step), b.loss_after_step(step)) << step;
    }
    for (const int number : {0, 1}) {
      const std::vector<StateArray> saved = b.state(number);
      LayerSettings settings = settings_of(recipe, "2:4");
      settings.number = number;
      b.layer(number).configure(settings);
      EXPECT_FALSE(b.layer(number).state().begun);
      b.layer(number).load_state(saved);
    }
    for (int64_t step = 9; step < 15; ++step) {
      ASSERT_EQ(a.loss_after_step(step), b.loss_after_step(step)) << step;
    }
  }
}

TEST(LayerWithoutTorch, AStateOfAnotherRecipeOrMalformedIsRefusedAndChangesNothing) {
  Network network(settings_of("bi-mask", "2:4"));
  network.loss_after_step(0);
  Layer& layer = network.layer(0);
  const std::vector<StateArray> saved = layer.save_state();
  const auto expect_refused = [&](std::vector<StateArray> arrays, const char* part) {
    try {
      layer.load_state(arrays);
      FAIL() << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_EQ(layer.save_state()[0].values, saved[0].values);
  };
  std::vector<StateArray> arrays = saved;
  arrays[0].values.pop_back();
  expect_refused(arrays, "words for another shape");
  arrays = saved;
  arrays[2].values[0] = arrays[2].values[1];
  expect_refused(arrays, "permutation");
  arrays = saved;
  arrays[5].values[8] ^= 1;
  expect_refused(arrays, "another recipe");
  arrays = saved;
  arrays.erase(arrays.begin() + 3);
  expect_refused(arrays, "no array 'row_order'");
}

// A mask from outside, as a run that is spread over processes has it from another one: before the
// first pass or later, and never one that the recipe would contradict.
TEST(LayerWithoutTorch, AGivenMaskIsUsedAndMustObey) {
  const std::vector<float> w = gaussian(64, 1);
  Mask mask(8, 8);
  for (int64_t r = 0; r < 8; ++r) {
    for (const int64_t c : {0, 1, 4, 5}) mask.set(r, c, true);
  }
  for (const bool first : {true, false}) {
    LinearLayer layer(8, 8);
    layer.configure(settings_of("static+dense_head=0", "2:4"));
    if (!first) layer.begin_pass({w.data()}, true);
    layer.give_mask(mask);
    if (first) layer.begin_pass({w.data()}, true);
    std::vector<float> x(8, 0.0f), y(8), dx(8);
    x[1] = x[2] = 1.0f;
    layer.forward<float>(w.data(), {x.data(), 1, 8}, nullptr, {y.data(), 1, 8});
    for (size_t o = 0; o < 8; ++o) EXPECT_EQ(y[o], w[o * 8 + 1]);
    std::fill(x.begin(), x.end(), 0.0f);
    x[3] = 1.0f;
    layer.backward_data<float>(w.data(), {x.data(), 1, 8}, {dx.data(), 1, 8});
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(dx[i], i % 4 < 2 ? w[3 * 8 + i] : 0.0f) << i;
    Mask crowded = mask;
    crowded.set(0, 2, true);
    EXPECT_THROW(layer.give_mask(crowded), Error);
    EXPECT_THROW(layer.give_mask(Mask(8, 4)), Error);
    EXPECT_EQ(layer.state().forward, mask);
  }
  for (const char* recipe : {"bi-mask", "s-ste", "static", "dense"}) {
    LinearLayer layer(8, 8);
    layer.configure(settings_of(recipe, "2:4"));
    EXPECT_THROW(layer.give_mask(mask), Error) << recipe;
  }
}

TEST(LayerWithoutTorch, AProductOfALayerThatIsNotReadyIsAnError) {
  LinearLayer layer(8, 8);
  layer.configure(settings_of("ste", "2:4"));
  const std::vector<float> w = gaussian(64, 1), x = gaussian(8, 2);
  std::vector<float> y(8);
  const auto forward = [&] {
    layer.forward<float>(w.data(), {x.data(), 1, 8}, nullptr, {y.data(), 1, 8});
  };
  EXPECT_THROW(forward(), Error) << "before the first pass";
  layer.begin_pass({w.data()}, true);
  EXPECT_NO_THROW(forward());
  layer.count_step();
  EXPECT_THROW(forward(), Error) << "with the masks of the weights before the step";
  layer.bring_up_to_date({w.data()});
  EXPECT_NO_THROW(forward());
  const std::vector<Bf16> narrow(8);
  std::vector<Bf16> result(8);
  EXPECT_THROW(layer.forward<Bf16>(w.data(), {narrow.data(), 1, 8}, nullptr, {result.data(), 1, 8}),
               Error);
  LinearLayer lbc(8, 8);
  lbc.configure(settings_of("lbc", "2:4"));
  EXPECT_THROW(lbc.begin_pass({w.data()}, true), Error) << "without its scores";
}

// Weights that cannot be used leave no operands of the ones before.
TEST(LayerWithoutTorch, AFailedUpdateLeavesNothingStale) {
  LinearLayer layer(8, 8);
  layer.configure(settings_of("ste", "2:4"));
  std::vector<float> w = gaussian(64, 1);
  layer.begin_pass({w.data()}, true);
  const int64_t stamp = layer.stamp();
  layer.count_step();
  w[5] = NAN;
  EXPECT_THROW(layer.bring_up_to_date({w.data()}), Error);
  EXPECT_NE(layer.stamp(), stamp);
  std::vector<float> y(8);
  EXPECT_THROW(layer.forward<float>(w.data(), {w.data() + 8, 1, 8}, nullptr, {y.data(), 1, 8}),
               Error);
}

// g and x as columns of wider matrices, as those of a fused projection.
TEST(LayerWithoutTorch, ActivationsMayHaveGapsBetweenRows) {
  constexpr int64_t kTokens = 12, kSize = 8, kWide = 20;
  const std::vector<float> w = gaussian(64, 1), x = gaussian(kTokens * kWide, 2),
                           g = gaussian(kTokens * kWide, 3);
  const auto closed = [&](const std::vector<float>& wide) {
    std::vector<float> all;
    for (int64_t t = 0; t < kTokens; ++t) {
      all.insert(all.end(), wide.begin() + t * kWide + 4, wide.begin() + t * kWide + 4 + kSize);
    }
    return all;
  };
  const std::vector<float> x2 = closed(x), g2 = closed(g);
  for (const PlanMode mode : {PlanMode::kSparse, PlanMode::kDense}) {
    for (const char* recipe : {"ste", "s-ste", "s-ste+fp8", "static+dense_head=0"}) {
      SCOPED_TRACE(recipe);
      LinearLayer layer(kSize, kSize);
      layer.configure(settings_of(recipe, "2:4", mode));
      layer.begin_pass({w.data()}, true);
      const Pass pass = layer.next_pass();
      std::vector<float> results[2];
      for (const bool gaps : {false, true}) {
        const MatrixView<const float> in(gaps ? x.data() + 4 : x2.data(), kTokens, kSize,
                                         gaps ? kWide : kSize);
        const MatrixView<const float> back(gaps ? g.data() + 4 : g2.data(), kTokens, kSize,
                                           gaps ? kWide : kSize);
        std::vector<float> y(kTokens * kSize), dx(kTokens * kSize), dw(kSize * kSize);
        layer.forward<float>(w.data(), in, nullptr, {y.data(), kTokens, kSize});
        layer.backward_data<float>(w.data(), back, {dx.data(), kTokens, kSize});
        layer.backward_weight<float>(w.data(), back, in, pass, {dw.data(), kSize, kSize});
        for (const auto* part : {&y, &dx, &dw}) {
          results[gaps].insert(results[gaps].end(), part->begin(), part->end());
        }
      }
      EXPECT_EQ(results[0], results[1]);
    }
  }
}

// A batch that is cut in two, each part told where it begins, draws the sample of the whole.
TEST(LayerWithoutTorch, SamplesKnowWhereTheirTokensBegin) {
  constexpr int64_t kTokens = 16, kSize = 8;
  const std::vector<float> w = gaussian(kSize * kSize, 1), x = gaussian(kTokens * kSize, 2),
                           g = gaussian(kTokens * kSize, 3);
  for (const PlanMode mode : {PlanMode::kDense, PlanMode::kSparse}) {
    LinearLayer layer(kSize, kSize);
    layer.configure(settings_of("s-ste", "2:4", mode));
    layer.begin_pass({w.data()}, true);
    const auto dw_of = [&](int64_t first, int64_t tokens, Pass pass) {
      std::vector<float> dw(kSize * kSize);
      layer.backward_weight<float>(w.data(), {g.data() + first * kSize, tokens, kSize},
                                   {x.data() + first * kSize, tokens, kSize}, pass,
                                   {dw.data(), kSize, kSize});
      return dw;
    };
    const std::vector<float> whole = dw_of(0, kTokens, {5, 0, 0, 0});
    const std::vector<float> front = dw_of(0, 8, {5, 0, 0, 0}), back = dw_of(8, 8, {5, 0, 0, 8});
    const std::vector<float> wrong = dw_of(8, 8, {5, 0, 0, 0});
    double gap = 0.0, others = 0.0;
    for (size_t i = 0; i < whole.size(); ++i) {
      gap = std::max<double>(gap, std::abs(whole[i] - (front[i] + back[i])));
      others = std::max<double>(others, std::abs(whole[i] - (front[i] + wrong[i])));
    }
    EXPECT_LT(gap, 1e-5);
    EXPECT_GT(others, 1e-2);
    EXPECT_THROW(dw_of(8, 8, {5, 0, 0, 6}), Error);
  }
}

// The positions of an image are its tokens, and groups begin with every image: 3 x 3 positions make
// three groups of four, the last of one.
TEST(LayerWithoutTorch, SamplesOfConvolutionsKnowWhichImageIsTheirFirst) {
  ConvShape geometry;
  geometry.ins = geometry.outs = 8;
  const std::vector<float> w = gaussian(64, 1), x = gaussian(4 * 72, 2), g = gaussian(4 * 72, 3);
  for (const PlanMode mode : {PlanMode::kDense, PlanMode::kSparse}) {
    ConvLayer layer(geometry);
    layer.configure(settings_of("s-ste", "2:4", mode));
    layer.begin_pass({w.data()}, true);
    const auto dw_of = [&](int64_t first, int64_t images, int64_t token) {
      std::vector<float> dw(64);
      const std::array<int64_t, 4> sizes = {images, 8, 3, 3};
      layer.backward_weight<float>(w.data(), {g.data() + first * 72, sizes},
                                   {x.data() + first * 72, sizes}, {5, 0, 0, token}, dw.data());
      return dw;
    };
    const std::vector<float> whole = dw_of(0, 4, 0), front = dw_of(0, 3, 0), back = dw_of(3, 1, 27);
    for (size_t i = 0; i < whole.size(); ++i) {
      EXPECT_NEAR(whole[i], front[i] + back[i], 1e-4) << i;
    }
    EXPECT_THROW(dw_of(3, 1, 12), Error);
  }
}

// The same numbers in channels last, forward and back.
TEST(LayerWithoutTorch, ConvolutionsTakeStrides) {
  ConvShape geometry;
  geometry.ins = 8;
  geometry.outs = 16;
  geometry.kernel_h = geometry.kernel_w = 3;
  geometry.pad_h = geometry.pad_w = 1;
  const std::array<int64_t, 4> x_sizes = {2, 8, 5, 6}, y_sizes = {2, 16, 5, 6};
  const auto last = [](const std::array<int64_t, 4>& s) {
    return std::array<int64_t, 4>{s[1] * s[2] * s[3], 1, s[3] * s[1], s[1]};
  };
  const auto to_last = [](const std::vector<float>& from, const std::array<int64_t, 4>& s) {
    std::vector<float> to(from.size());
    for (int64_t n = 0; n < s[0]; ++n)
      for (int64_t c = 0; c < s[1]; ++c)
        for (int64_t p = 0; p < s[2] * s[3]; ++p)
          to[static_cast<size_t>((n * s[2] * s[3] + p) * s[1] + c)] =
              from[static_cast<size_t>((n * s[1] + c) * s[2] * s[3] + p)];
    return to;
  };
  const std::vector<float> w = gaussian(16 * 8 * 9, 1), x = gaussian(2 * 8 * 30, 2),
                           g = gaussian(2 * 16 * 30, 3);
  const std::vector<float> x_last = to_last(x, x_sizes), g_last = to_last(g, y_sizes);
  for (const char* recipe : {"sr-ste", "s-ste+fp8", "dense"}) {
    SCOPED_TRACE(recipe);
    ConvLayer layer(geometry);
    layer.configure(settings_of(recipe, "2:4"));
    layer.begin_pass({w.data()}, true);
    const Pass pass = layer.next_pass();
    std::vector<float> y(g.size()), dx(x.size()), dw(w.size()), y2(g.size()), dx2(x.size()),
        dw2(w.size());
    layer.forward<float>(w.data(), {x.data(), x_sizes}, nullptr, {y.data(), y_sizes});
    layer.backward_data<float>(w.data(), {g.data(), y_sizes}, {dx.data(), x_sizes});
    layer.backward_weight<float>(w.data(), {g.data(), y_sizes}, {x.data(), x_sizes}, pass,
                                 dw.data());
    layer.forward<float>(w.data(), {x_last.data(), x_sizes, last(x_sizes)}, nullptr,
                         {y2.data(), y_sizes, last(y_sizes)});
    layer.backward_data<float>(w.data(), {g_last.data(), y_sizes, last(y_sizes)},
                               {dx2.data(), x_sizes, last(x_sizes)});
    layer.backward_weight<float>(w.data(), {g_last.data(), y_sizes, last(y_sizes)},
                                 {x_last.data(), x_sizes, last(x_sizes)}, pass, dw2.data());
    EXPECT_EQ(to_last(y, y_sizes), y2);
    EXPECT_EQ(to_last(dx, x_sizes), dx2);
    EXPECT_EQ(dw, dw2);
  }
}

// ---- a part from outside

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
  static const bool once = [] {
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
  ASSERT_TRUE(once);
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
