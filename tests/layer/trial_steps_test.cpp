// Layers while the planner measures: what they compute does not depend on any time, only on the
// choices and on the step from which these hold.
#include <gtest/gtest.h>

#include "tests/model_files.h"
#include "weft/core/bf16.h"
#include "weft/kernel/bf16_rows.h"
#include "weft/layer/conv_layer.h"
#include "weft/layer/linear_layer.h"

namespace weft {
namespace {

using test::gaussian;

LayerSettings settings_with(std::shared_ptr<Planner> planner, const std::string& recipe) {
  LayerSettings settings;
  settings.recipe = Recipe::parse(recipe);
  settings.total_steps = 1000;
  settings.planner = std::move(planner);
  return settings;
}

// All numbers of a step: y, dx and dw.
using StepResult = std::vector<float>;

// y = x Wᵀ with weights that move by dw after every step; T: of activations.
template <typename T>
class LinearRunOf {
 public:
  // Deeper than a block of oneDNN's AVX-512 sgemm: within one it sums in order, as the sparse loop.
  static constexpr int64_t kTokens = 64, kIns = 520, kOuts = 48;

  LinearRunOf(std::shared_ptr<Planner> planner, const std::string& recipe, int micro_batches = 1,
              int64_t total_steps = 1000)
      : micro_batches_(micro_batches), layer_(kOuts, kIns), w_(gaussian(kOuts * kIns, 1)) {
    LayerSettings settings = settings_with(std::move(planner), recipe);
    settings.micro_batches = micro_batches;
    settings.total_steps = total_steps;
    if (std::is_same_v<T, Bf16>) settings.precision = Precision::kBf16;
    layer_.configure(settings);
    if (const auto shape = layer_.score_shape()) {
      scores_.resize(static_cast<size_t>(shape->size()));
      layer_.first_scores(scores_);
    }
  }

  // The results of all micro-batches, one after the other.
  StepResult step() {
    StepResult all;
    std::vector<float> sum(kOuts * kIns);
    for (int i = 0; i < micro_batches_; ++i) {
      const std::vector<float> dw = micro_batch(static_cast<uint64_t>(i), all);
      for (size_t j = 0; j < sum.size(); ++j) sum[j] += dw[j];
    }
    if (layer_.trains_scores()) {
      std::vector<float> ds(scores_.size());
      layer_.score_gradient(w_.data(), sum.data(), ds.data());
      for (size_t i = 0; i < ds.size(); ++i) scores_[i] -= 1e-3f * ds[i];
    }
    for (size_t i = 0; i < w_.size(); ++i) w_[i] -= 1e-3f * sum[i];
    layer_.count_step();
    layer_.bring_up_to_date(weights());
    return all;
  }
  void evaluate() {
    const std::vector<T> x = activations(kTokens * kIns, 2);
    std::vector<T> y(kTokens * kOuts);
    layer_.begin_pass(weights(), /*training=*/false);
    layer_.template forward<T>(weights(), {x.data(), kTokens, kIns}, nullptr,
                               {y.data(), kTokens, kOuts});
  }
  const LinearLayer& layer() const { return layer_; }

 private:
  LayerWeights weights() const { return {w_.data(), scores_}; }

  static std::vector<T> activations(int64_t size, uint64_t seed) {
    const std::vector<float> wide = gaussian(size, seed);
    std::vector<T> found(wide.size());
    if constexpr (std::is_same_v<T, Bf16>) {
      round_to_bf16(wide.data(), size, found.data());
    } else {
      found = wide;
    }
    return found;
  }

  // Appends y, dx and dw to `all`; returns dw.
  std::vector<float> micro_batch(uint64_t number, StepResult& all) {
    const std::vector<T> x = activations(kTokens * kIns, 2 + 2 * number),
                         g = activations(kTokens * kOuts, 3 + 2 * number);
    std::vector<T> y(kTokens * kOuts), dx(kTokens * kIns);
    std::vector<float> dw(kOuts * kIns);
    layer_.begin_pass(weights(), /*training=*/true);
    const Pass pass = layer_.next_pass();
    layer_.template forward<T>(weights(), {x.data(), kTokens, kIns}, nullptr,
                               {y.data(), kTokens, kOuts});
    layer_.template backward_data<T>(weights(), {g.data(), kTokens, kOuts},
                                     {dx.data(), kTokens, kIns});
    layer_.template backward_weight<T>(weights(), {g.data(), kTokens, kOuts},
                                       {x.data(), kTokens, kIns}, pass, {dw.data(), kOuts, kIns});
    for (const std::vector<T>* one : {&y, &dx}) {
      for (const T value : *one) all.push_back(wide(value));
    }
    all.insert(all.end(), dw.begin(), dw.end());
    return dw;
  }
  static float wide(float value) { return value; }
  static float wide(Bf16 value) { return to_float(value); }

  int micro_batches_;
  LinearLayer layer_;
  std::vector<float> w_, scores_;
};
using LinearRun = LinearRunOf<float>;

class ConvRun {
 public:
  ConvRun(std::shared_ptr<Planner> planner, const std::string& recipe)
      : shape_(ConvShape::parse("3x16x7x6:24x3x3,pad=1")),
        layer_(shape_),
        w_(gaussian(shape_.w_size(), 1)) {
    layer_.configure(settings_with(std::move(planner), recipe));
  }

  StepResult step() {
    const std::vector<float> x = gaussian(shape_.x_size(), 2), g = gaussian(shape_.y_size(), 3);
    StepResult y(g.size()), dx(x.size()), dw(w_.size());
    const std::array<int64_t, 4> x_sizes = {3, 16, 7, 6}, y_sizes = {3, 24, 7, 6};
    const auto of = [](auto* data, const std::array<int64_t, 4>& sizes) {
      return ImageView<std::remove_pointer_t<decltype(data)>>(data, sizes);
    };
    layer_.begin_pass(w_.data(), /*training=*/true);
    const Pass pass = layer_.next_pass();
    layer_.forward<float>(w_.data(), of(x.data(), x_sizes), nullptr, of(y.data(), y_sizes));
    layer_.backward_data<float>(w_.data(), of(g.data(), y_sizes), of(dx.data(), x_sizes));
    layer_.backward_weight<float>(w_.data(), of(g.data(), y_sizes), of(x.data(), x_sizes), pass,
                                  dw.data());
    for (size_t i = 0; i < w_.size(); ++i) w_[i] -= 1e-3f * dw[i];
    layer_.count_step();
    layer_.bring_up_to_date(w_.data());
    y.insert(y.end(), dx.begin(), dx.end());
    y.insert(y.end(), dw.begin(), dw.end());
    return y;
  }
  void evaluate() {
    const std::vector<float> x = gaussian(shape_.x_size(), 2);
    StepResult y(static_cast<size_t>(shape_.y_size()));
    layer_.begin_pass(w_.data(), /*training=*/false);
    layer_.forward<float>(w_.data(), ImageView<const float>(x.data(), {3, 16, 7, 6}), nullptr,
                          ImageView<float>(y.data(), {3, 24, 7, 6}));
  }
  const ConvLayer& layer() const { return layer_; }

 private:
  ConvShape shape_;
  ConvLayer layer_;
  std::vector<float> w_;
};

template <typename Run>
class TrialSteps : public testing::Test {};
using Runs = testing::Types<LinearRun, ConvRun>;
TYPED_TEST_SUITE(TrialSteps, Runs);

std::shared_ptr<Planner> planner_of(PlanMode mode) { return std::make_shared<Planner>(mode, ""); }

// While it measures, the run has the bits of one that is sparse throughout.
TYPED_TEST(TrialSteps, CountSparseResultsWhileTheyMeasure) {
  for (const char* recipe :
       {"sr-ste", "s-ste", "t-sr-ste", "bi-mask", "static+dense_head=0", "s-ste+fp8"}) {
    SCOPED_TRACE(recipe);
    TypeParam measured(planner_of(PlanMode::kAuto), recipe);
    TypeParam sparse(planner_of(PlanMode::kSparse), recipe);
    for (int64_t step = 0; step < Trial::kSteps; ++step) {
      ASSERT_EQ(measured.step(), sparse.step()) << "step " << step;
      EXPECT_TRUE(measured.layer().telemetry(nullptr).plan_text().starts_with("sparse/sparse/"));
    }
  }
}

// An evaluation before the first step packs or copies what a trial then has to make by itself.
TYPED_TEST(TrialSteps, DoNotDependOnAnEvaluationBefore) {
  TypeParam evaluated(planner_of(PlanMode::kAuto), "sr-ste");
  TypeParam plain(planner_of(PlanMode::kSparse), "sr-ste");
  evaluated.evaluate();
  for (int step = 0; step < 4; ++step) ASSERT_EQ(evaluated.step(), plain.step()) << step;
  evaluated.evaluate();
  ASSERT_EQ(evaluated.step(), plain.step());
}

// And a run that is given its choices has its bits, before and after they take effect.
TYPED_TEST(TrialSteps, AreRepeatedByTheSavedChoices) {
  const auto planner = planner_of(PlanMode::kAuto);
  TypeParam measured(planner, "s-ste");
  std::vector<StepResult> results;
  while (results.size() < 2 * Trial::kSteps + 4) results.push_back(measured.step());
  EXPECT_FALSE(planner->measured_before(measured.layer().state().step)) << "it never ends";
  TypeParam repeated(std::make_shared<Planner>(Planner::from_saved(planner->saved())), "s-ste");
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(repeated.step(), results[i]) << "step " << i;
  }
}

// Choices that differ from what was computed before do change the numbers: the test above compares
// something.
TYPED_TEST(TrialSteps, ComputeOtherBitsOnOtherPaths) {
  TypeParam dense(planner_of(PlanMode::kDense), "s-ste"),
      sparse(planner_of(PlanMode::kSparse), "s-ste");
  EXPECT_NE(dense.step(), sparse.step());
}

TYPED_TEST(TrialSteps, SayHowTheResultThatCountsWasComputed) {
  TypeParam run(planner_of(PlanMode::kAuto), "sr-ste");
  for (int i = 0; i < 3; ++i) run.step();
  EXPECT_EQ(run.layer().telemetry(nullptr).plan_text(), "sparse/sparse/dense");
}

// Micro-batches of a step count as one sample, and none of them changes a number.
TEST(TrialOfLinear, MicroBatchesOfAStepAreOneSample) {
  for (const char* recipe : {"sr-ste", "t-sr-ste"}) {
    SCOPED_TRACE(recipe);
    const auto planner = planner_of(PlanMode::kAuto);
    LinearRun measured(planner, recipe, /*micro_batches=*/3);
    LinearRun sparse(planner_of(PlanMode::kSparse), recipe, /*micro_batches=*/3);
    for (int64_t step = 0; step < Trial::kSteps; ++step) {
      ASSERT_TRUE(step == 0 || planner->measured_before(step)) << "decided before step " << step;
      ASSERT_EQ(measured.step(), sparse.step()) << "step " << step;
    }
    for (int64_t step = 0; step <= Trial::kSteps; ++step) measured.step();
    EXPECT_FALSE(planner->measured_before(measured.layer().state().step)) << "it never ends";
  }
}

// The run that is given the choices of a measured one has its bits.
template <typename T>
void expect_repeated(const std::string& recipe, int64_t steps) {
  const auto planner = planner_of(PlanMode::kAuto);
  LinearRunOf<T> measured(planner, recipe, /*micro_batches=*/2, /*total_steps=*/steps);
  std::vector<StepResult> results;
  for (int64_t step = 0; step < steps; ++step) results.push_back(measured.step());
  LinearRunOf<T> repeated(std::make_shared<Planner>(Planner::from_saved(planner->saved())), recipe,
                          2, steps);
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(repeated.step(), results[i]) << recipe << " step " << i;
  }
}

// Candidates go, so the pattern that is planned for changes, and with it the trial.
TEST(TrialOfLinear, RepeatsLbcThroughItsRemoval) { expect_repeated<float>("lbc", 80); }

// Ways with two arithmetics take turns where the CPU has a unit for bf16.
TEST(TrialOfLinear, RepeatsBf16) {
  for (const char* recipe : {"sr-ste", "t-sr-ste", "static+dense_head=0"}) {
    expect_repeated<Bf16>(recipe, 2 * Trial::kSteps + 4);
  }
}

}  // namespace
}  // namespace weft
