// Products of some outputs of a linear layer: the projections of attention in one weight.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/layer/network.h"
#include "tests/support.h"
#include "weft/core/bf16.h"
#include "weft/layer/linear_layer.h"

namespace weft::test {
namespace {

constexpr int64_t kTokens = 24, kIns = 32, kOuts = 48;

struct Products {
  std::vector<float> y, dx, dw;
};

// T: of activations.
template <typename T>
class LayerInParts {
 public:
  LayerInParts(const std::string& recipe, const std::string& pattern, PlanMode mode)
      : layer_(kOuts, kIns), w_(gaussian(kOuts * kIns, 1)), bias_(gaussian(kOuts, 4)) {
    LayerSettings settings = settings_of(recipe, pattern, mode);
    if (std::is_same_v<T, Bf16>) settings.precision = Precision::kBf16;
    layer_.configure(settings);
    if (const auto shape = layer_.score_shape()) {
      scores_.resize(static_cast<size_t>(shape->size()));
      layer_.first_scores(scores_);
    }
    layer_.begin_pass(weights(), /*training=*/true);
  }

  Products of(const Outputs& some) {
    const std::vector<T> x = narrow(gaussian(kTokens * kIns, 2)), g = gradient_of(some);
    std::vector<T> y(size(kTokens * some.count)), dx(size(kTokens * kIns));
    Products all;
    all.dw.resize(size(some.count * kIns));
    layer_.forward<T>(weights(), {x.data(), kTokens, kIns}, bias_.data() + some.first,
                      {y.data(), kTokens, some.count}, some);
    layer_.backward_data<T>(weights(), {g.data(), kTokens, some.count}, {dx.data(), kTokens, kIns},
                            some);
    layer_.backward_weight<T>(weights(), {g.data(), kTokens, some.count}, {x.data(), kTokens, kIns},
                              layer_.next_pass(), {all.dw.data(), some.count, kIns}, some);
    all.y = wide(y);
    all.dx = wide(dx);
    return all;
  }

  LinearLayer& layer() { return layer_; }
  void move_weights() {
    for (float& w : w_) w = -w;
    w_[3] = 9.0f;
    layer_.count_step();
    layer_.bring_up_to_date(weights());
    layer_.begin_pass(weights(), true);
  }

 private:
  static size_t size(int64_t n) { return static_cast<size_t>(n); }
  LayerWeights weights() const { return {w_.data(), scores_}; }
  std::vector<T> gradient_of(const Outputs& some) const {
    const std::vector<float> g = gaussian(kTokens * kOuts, 3);
    std::vector<float> own;
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto row = g.begin() + t * kOuts + some.first;
      own.insert(own.end(), row, row + std::min(some.count, kOuts - some.first));
    }
    own.resize(size(kTokens * some.count));  // if they go beyond the layer, which refuses that
    return narrow(own);
  }
  static std::vector<T> narrow(const std::vector<float>& values) {
    if constexpr (std::is_same_v<T, float>) {
      return values;
    } else {
      std::vector<T> found;
      for (const float one : values) found.push_back(to_bf16(one));
      return found;
    }
  }
  static std::vector<float> wide(const std::vector<T>& values) {
    std::vector<float> found;
    for (const T one : values) {
      if constexpr (std::is_same_v<T, float>)
        found.push_back(one);
      else
        found.push_back(to_float(one));
    }
    return found;
  }

  LinearLayer layer_;
  std::vector<float> w_, bias_, scores_;
};

// Parts one after the other against all outputs at once.
template <typename T>
void expect_parts_of_whole(LayerInParts<T>& run, const std::vector<int64_t>& ends, double bound) {
  // Other parts draw other samples; FP8 rounds a gradient by its largest entry.
  const bool fp8 = run.layer().recipe().fp8, sampled = run.layer().recipe().samples_gradient();
  const Products whole = run.of(run.layer().all());
  std::vector<float> dx(whole.dx.size());
  int64_t first = 0;
  for (const int64_t end : ends) {
    const Outputs some{first, end - first};
    const Products part = run.of(some);
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t o = 0; o < some.count; ++o) {
        ASSERT_NEAR(part.y[static_cast<size_t>(t * some.count + o)],
                    whole.y[static_cast<size_t>(t * kOuts + first + o)], bound)
            << "token " << t << ", output " << first + o;
      }
    }
    for (size_t i = 0; i < dx.size(); ++i) dx[i] += part.dx[i];
    for (size_t i = 0; i < part.dw.size() && !sampled && !fp8; ++i) {
      ASSERT_NEAR(part.dw[i], whole.dw[static_cast<size_t>(first * kIns) + i], bound) << i;
    }
    first = end;
  }
  for (size_t i = 0; i < dx.size() && !fp8; ++i) ASSERT_NEAR(dx[i], whole.dx[i], bound) << i;
}

const std::vector<std::string>& part_recipes() {
  static const std::vector<std::string> names = {"dense",
                                                 "ste",
                                                 "sr-ste",
                                                 "static+dense_head=0",
                                                 "transposable",
                                                 "t-sr-ste",
                                                 "bi-mask",
                                                 "s-ste",
                                                 "lbc",
                                                 "s-ste+fp8",
                                                 "static+dense_head=0+forward=transposable"};
  return names;
}

TEST(LinearParts, AreTheRowsOfTheWholeProducts) {
  for (const std::string& recipe : part_recipes()) {
    for (const PlanMode mode : {PlanMode::kSparse, PlanMode::kDense}) {
      for (const std::string pattern : {"2:4", "2:4x2"}) {
        SCOPED_TRACE(recipe + " " + pattern + (mode == PlanMode::kSparse ? " sparse" : " dense"));
        LayerInParts<float> run(recipe, pattern, mode);
        constexpr double bound = 1e-4;
        expect_parts_of_whole(run, {16, 32, 48}, bound);
        expect_parts_of_whole(run, {16, 48}, bound);
        expect_parts_of_whole(run, {7, 30, 48}, bound);
        run.move_weights();
        expect_parts_of_whole(run, {16, 48}, bound);
      }
    }
  }
}

TEST(LinearParts, WorkInBf16) {
  for (const std::string recipe : {"dense", "sr-ste", "transposable", "static+dense_head=0"}) {
    for (const std::string pattern : {"2:4", "2:4x16"}) {
      SCOPED_TRACE(recipe + " " + pattern);
      LayerInParts<Bf16> run(recipe, pattern, PlanMode::kSparse);
      expect_parts_of_whole(run, {16, 48}, 0.25);
    }
  }
}

// Where parts cut through rows that depend on each other, they are dense; otherwise they are packed.
TEST(LinearParts, RunSparseWhereTheyCanBePacked) {
  const auto plan = [](const std::string& recipe, const std::string& pattern, const Outputs& some) {
    LayerInParts<float> run(recipe, pattern, PlanMode::kSparse);
    run.of(some);
    return run.layer().telemetry(nullptr).plan_text();
  };
  EXPECT_EQ(plan("sr-ste", "2:4", {16, 32}), "sparse/sparse/dense");
  EXPECT_EQ(plan("sr-ste", "2:4", {7, 20}), "sparse/sparse/dense");
  EXPECT_EQ(plan("transposable", "2:4", {16, 16}), "sparse/sparse/dense");
  EXPECT_EQ(plan("transposable", "2:4", {6, 16}), "dense/dense/dense");
  EXPECT_EQ(plan("sr-ste", "2:4x2", {16, 16}), "sparse/sparse/dense");
  EXPECT_EQ(plan("sr-ste", "2:4x2", {12, 16}), "dense/dense/dense");
  EXPECT_EQ(plan("sr-ste+order_every=1", "2:4x2", {16, 16}), "dense/dense/dense");
  EXPECT_EQ(plan("sr-ste+order_every=1", "2:4x2", {0, kOuts}), "sparse/sparse/dense");
  EXPECT_EQ(plan("static+dense_head=0", "2:4", {7, 20}), "sparse/sparse/sparse");
  EXPECT_EQ(plan("s-ste", "2:4", {7, 20}), "sparse/sparse/sparse");
}

TEST(LinearParts, OutsideOfTheLayerAreRefused) {
  LayerInParts<float> run("ste", "2:4", PlanMode::kSparse);
  EXPECT_TRUE(contains(message_of([&] { run.of({40, 16}); }), "outputs 40 to 56 of 48"));
}

}  // namespace
}  // namespace weft::test
