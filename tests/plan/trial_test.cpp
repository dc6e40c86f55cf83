// Choices by what a run measures: weft/plan/trial.h, and the routes of weft/plan/planner.h.
#include "weft/plan/trial.h"

#include <gtest/gtest.h>

#include "tests/support.h"
#include "weft/plan/planner.h"

namespace weft {
namespace {

using test::contains;

constexpr Way kDense{false, Precision::kFp32}, kSparse{true, Precision::kFp32};

TEST(Trial, ComparesWaysWithinAStep) {
  Trial trial({kDense, kSparse});
  // The machine is ten times slower in every other step: the ratio is not.
  for (int step = 0; step < 8; ++step) {
    const double slow = step % 2 == 0 ? 1.0 : 10.0;
    trial.add(std::vector{3.0 * slow, 2.0 * slow});
  }
  const Trial::Verdict verdict = trial.verdict();
  EXPECT_DOUBLE_EQ(verdict.ratio, 1.5);
  EXPECT_DOUBLE_EQ(verdict.low, 1.5);
  EXPECT_DOUBLE_EQ(verdict.high, 1.5);
  EXPECT_DOUBLE_EQ(verdict.dense_ms, 3.0);
  EXPECT_DOUBLE_EQ(verdict.sparse_ms, 2.0);
}

TEST(Trial, OneSlowStepMovesNothing) {
  Trial trial({kDense, kSparse});
  for (int step = 0; step < 15; ++step) trial.add(std::vector{3.0, step == 4 ? 300.0 : 2.0});
  EXPECT_DOUBLE_EQ(trial.verdict().ratio, 1.5);
  EXPECT_DOUBLE_EQ(trial.verdict().low, 1.5);
}

TEST(Trial, TakesTheFastestOfEitherKind) {
  const Way dense_tiles{false, Precision::kBf16}, sparse_tiles{true, Precision::kBf16};
  Trial trial({kDense, dense_tiles, kSparse, sparse_tiles});
  for (int step = 0; step < 5; ++step) trial.add(std::vector{8.0, 4.0, 2.0, 6.0});
  EXPECT_EQ(trial.verdict().dense, dense_tiles);
  EXPECT_EQ(trial.verdict().sparse, kSparse);
  EXPECT_DOUBLE_EQ(trial.verdict().ratio, 2.0);
}

const PlanRequest kRequest{.shape = {512, 256, 128}, .pattern = Pattern(2, 4)};
constexpr int kLayer = 0, kOther = 0;  // two layers, told apart by their addresses

// Steps of a layer that asks for one product and needs these milliseconds for it.
void take_steps(Planner& planner, int64_t first, int64_t end, double dense_ms, double sparse_ms,
                const PlanRequest& request = kRequest) {
  for (int64_t step = first; step < end; ++step) {
    const Route route = planner.route(request, Product::kForward, step, &kLayer);
    ASSERT_EQ(route.way, kSparse) << "at step " << step << " another result counts";
    ASSERT_EQ(route.contestants.size(), 2U) << "at step " << step;
    planner.add_times(request, Product::kForward, step, std::vector{dense_ms, sparse_ms});
  }
}

Way way_at(Planner& planner, int64_t step) {
  const Route route = planner.route(kRequest, Product::kForward, step, &kLayer);
  EXPECT_TRUE(route.contestants.empty()) << "it still measures at step " << step;
  return route.way;
}

TEST(Route, IsDecidedAtAFixedStep) {
  for (const auto& [sparse_ms, expected] : {std::pair(4.0, kSparse), {8.0, kDense}}) {
    Planner planner(PlanMode::kAuto, {});
    take_steps(planner, 0, Trial::kSteps, 6.0, sparse_ms);
    EXPECT_EQ(way_at(planner, Trial::kSteps), expected);
    const ProductPlan plan = planner.known(kRequest)[Product::kForward];
    EXPECT_EQ(plan.cause, PlanCause::kTrial);
    EXPECT_DOUBLE_EQ(plan.ratio, 6.0 / sparse_ms);
    EXPECT_TRUE(contains(plan.reason(), "measured in the run")) << plan.reason();
  }
}

TEST(Route, TheFirstStepOnlyWarmsUp) {
  Planner planner(PlanMode::kAuto, {});
  take_steps(planner, 0, 1, 1.0, 1000.0);
  take_steps(planner, 1, Trial::kSteps, 6.0, 4.0);
  EXPECT_EQ(way_at(planner, Trial::kSteps), kSparse);
  EXPECT_DOUBLE_EQ(planner.known(kRequest)[Product::kForward].ratio_low, 1.5);
}

// Quartiles on both sides of the margin: it is measured for as long again, and then the median
// decides.
TEST(Route, MeasuresOnWhatIsTooCloseToCall) {
  Planner planner(PlanMode::kAuto, {});
  const auto noisy = [&](int64_t first, int64_t end) {
    for (int64_t step = first; step < end; ++step) {
      take_steps(planner, step, step + 1, 6.0, step % 3 == 0 ? 12.0 : 4.0);
    }
  };
  noisy(0, Trial::kSteps);
  planner.settle(Trial::kSteps);
  EXPECT_TRUE(planner.measured_before(Trial::kSteps));
  noisy(Trial::kSteps, 2 * Trial::kSteps);
  planner.settle(2 * Trial::kSteps);
  EXPECT_FALSE(planner.measured_before(2 * Trial::kSteps));
  EXPECT_EQ(way_at(planner, 2 * Trial::kSteps), kSparse);
}

TEST(Route, OneLayerOfAShapeMeasures) {
  Planner planner(PlanMode::kAuto, {});
  take_steps(planner, 0, 3, 6.0, 4.0);
  const Route other = planner.route(kRequest, Product::kForward, 2, &kOther);
  EXPECT_TRUE(other.contestants.empty());
  EXPECT_EQ(other.way, kSparse);
  // The first layer is not used any more: another one goes on.
  EXPECT_FALSE(planner.route(kRequest, Product::kForward, 5, &kOther).contestants.empty());
}

TEST(Route, NothingIsMeasuredThatIsGiven) {
  Planner sparse(PlanMode::kSparse, {}), dense(PlanMode::kDense, {}), planner(PlanMode::kAuto, {});
  EXPECT_EQ(way_at(sparse, 0), kSparse);
  EXPECT_EQ(way_at(dense, 0), kDense);
  PlanRequest full = kRequest;
  full.pattern = Pattern(4, 4);
  EXPECT_EQ(planner.route(full, Product::kForward, 0, &kLayer).way, kDense);
  EXPECT_FALSE(planner.measured_before(1));
}

// A repeated run computes as the first one did, in every step.
TEST(Route, SavedChoicesHoldFromTheSameStep) {
  Planner planner(PlanMode::kAuto, {});
  take_steps(planner, 0, Trial::kSteps, 4.0, 6.0);
  planner.settle(Trial::kSteps);
  Planner again = Planner::from_saved(planner.saved());
  EXPECT_EQ(way_at(again, 0), kSparse) << "the result that counted";
  EXPECT_EQ(way_at(again, Trial::kSteps - 1), kSparse);
  EXPECT_EQ(way_at(again, Trial::kSteps), kDense);
  EXPECT_EQ(again.saved(), planner.saved());
  again.apply_at_once();
  EXPECT_EQ(way_at(again, 0), kDense);
}

// Killed before anything was decided, a run measures again, from where it goes on.
TEST(Route, ATrialThatWasCutShortBeginsAgain) {
  Planner planner(PlanMode::kAuto, {});
  take_steps(planner, 0, 10, 4.0, 6.0);
  Planner resumed(PlanMode::kAuto, {});
  resumed.remember(planner.saved());
  EXPECT_EQ(resumed.evaluation_way(kRequest, Product::kForward, 8), kSparse)
      << "as before the kill";
  take_steps(resumed, 8, 8 + Trial::kSteps, 4.0, 6.0);
  resumed.settle(8 + Trial::kSteps);
  EXPECT_EQ(way_at(resumed, 8 + Trial::kSteps), kDense);
}

TEST(Route, WhatIsHardlyEverComputedIsMeasuredOn) {
  Planner planner(PlanMode::kAuto, {});
  take_steps(planner, 0, 3, 6.0, 4.0);
  planner.settle(Trial::kSteps);
  EXPECT_EQ(planner.known(kRequest)[Product::kForward].cause, PlanCause::kMeasuring);
}

// Packing serves all micro-batches of a step, so their number is part of the question.
TEST(Route, MicroBatchesAreMeasuredOnTheirOwn) {
  Planner planner(PlanMode::kAuto, {});
  PlanRequest four = kRequest;
  four.products_per_pack = 4;
  for (int64_t step = 0; step < Trial::kSteps; ++step) {
    take_steps(planner, step, step + 1, 4.0, 6.0);
    take_steps(planner, step, step + 1, 4.0, 3.0, four);
  }
  planner.settle(Trial::kSteps);
  EXPECT_EQ(way_at(planner, Trial::kSteps), kDense);
  EXPECT_EQ(planner.route(four, Product::kForward, Trial::kSteps, &kLayer).way, kSparse);
  Planner again = Planner::from_saved(planner.saved());
  EXPECT_EQ(again.route(kRequest, Product::kForward, Trial::kSteps, &kLayer).way, kDense);
  EXPECT_EQ(again.route(four, Product::kForward, Trial::kSteps, &kLayer).way, kSparse);
}

// The union of lbc keeps fewer and fewer weights: 3:4 stands for it first, then 2:4. A trial that a
// change of pattern leaves behind decides nothing, and nothing waits for it.
TEST(Route, AChangeOfPatternLeavesItsTrialBehind) {
  constexpr int64_t kChange = 10, kEnd = kChange + Trial::kSteps;
  Planner planner(PlanMode::kAuto, {});
  PlanRequest fuller = kRequest;
  fuller.pattern = Pattern(3, 4);
  take_steps(planner, 0, kChange, 4.0, 6.0, fuller);  // samples enough to decide
  take_steps(planner, kChange, Trial::kSteps, 6.0, 4.0);
  planner.settle(Trial::kSteps);
  EXPECT_EQ(planner.known(fuller)[Product::kForward].cause, PlanCause::kMeasuring);
  EXPECT_EQ(planner.known(kRequest)[Product::kForward].cause, PlanCause::kMeasuring)
      << "the new pattern has its own sixteen steps";
  take_steps(planner, Trial::kSteps, kEnd, 6.0, 4.0);
  planner.settle(kEnd);
  EXPECT_EQ(way_at(planner, kEnd), kSparse);
  EXPECT_DOUBLE_EQ(planner.known(kRequest)[Product::kForward].ratio, 1.5) << "no times of 3:4";
  EXPECT_FALSE(planner.measured_before(kEnd + 1)) << "it waits for the trial of 3:4";
  Planner again = Planner::from_saved(planner.saved());
  EXPECT_EQ(again.route(fuller, Product::kForward, 0, &kLayer).way, kSparse)
      << "the result that counted";
  EXPECT_EQ(way_at(again, kEnd), kSparse);
}

TEST(Route, EvaluationDoesAsTrainingDoes) {
  Planner planner(PlanMode::kAuto, {});
  take_steps(planner, 0, Trial::kSteps, 4.0, 6.0);
  planner.settle(Trial::kSteps);
  PlanRequest larger = kRequest;
  larger.shape.tokens *= 3;
  EXPECT_EQ(planner.evaluation_way(larger, Product::kForward, Trial::kSteps), kDense);
  EXPECT_EQ(planner.evaluation_way(larger, Product::kForward, 3), kSparse) << "as it did at step 3";
}

// Of the files of two runs that took turns, one may have been written before the decision.
TEST(Route, AChoiceIsRememberedWhicheverFileComesFirst) {
  Planner planner(PlanMode::kAuto, {});
  take_steps(planner, 0, 3, 4.0, 6.0);
  const std::string early = planner.saved();
  take_steps(planner, 3, Trial::kSteps, 4.0, 6.0);
  planner.settle(Trial::kSteps);
  const std::string late = planner.saved();
  for (const auto& [first, second] : {std::pair(early, late), std::pair(late, early)}) {
    Planner both(PlanMode::kAuto, {});
    both.remember(first);
    both.remember(second);
    EXPECT_EQ(way_at(both, Trial::kSteps), kDense);
  }
}

// The last batch of an epoch is smaller than the others: it follows them, and needs no trial.
TEST(Route, ABatchOfAboutTheSizeFollows) {
  Planner planner(PlanMode::kAuto, {});
  take_steps(planner, 0, 2, 4.0, 6.0);
  PlanRequest smaller = kRequest;
  smaller.shape.tokens = 300;
  EXPECT_TRUE(planner.route(smaller, Product::kForward, 1, &kLayer).contestants.empty());
  take_steps(planner, 2, Trial::kSteps, 4.0, 6.0);
  planner.settle(Trial::kSteps);
  EXPECT_EQ(planner.route(smaller, Product::kForward, Trial::kSteps, &kLayer).way, kDense);
  smaller.shape.tokens = 100;
  EXPECT_FALSE(planner.route(smaller, Product::kForward, 20, &kLayer).contestants.empty())
      << "a fifth of the tokens";
}

TEST(Route, APreviewDecidesNothing) {
  Planner planner(PlanMode::kAuto, {});
  const int64_t before = planner.revision();
  planner.preview(true);
  EXPECT_EQ(planner.evaluation_way(kRequest, Product::kForward, 0), kSparse);
  EXPECT_EQ(planner.revision(), before);
}

TEST(Route, AConvolutionIsMeasuredTheSame) {
  Planner planner(PlanMode::kAuto, {});
  const ConvRequest request{ConvShape::parse("2x8x6x5:12x3x3"), Pattern(2, 4)};
  for (int64_t step = 0; step < Trial::kSteps; ++step) {
    const Route route = planner.route(request, Product::kBackwardWeight, step, &kLayer);
    ASSERT_EQ(route.contestants.size(), 2U);
    planner.add_times(request, Product::kBackwardWeight, step, std::vector{1.0, 3.0});
  }
  planner.settle(Trial::kSteps);
  EXPECT_EQ(planner.route(request, Product::kBackwardWeight, Trial::kSteps, &kLayer).way, kDense);
}

}  // namespace
}  // namespace weft
