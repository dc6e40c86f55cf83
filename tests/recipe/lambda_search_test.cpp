// The search for λ: which trials it makes for a ratio that falls with λ, and what it takes.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "tests/support.h"
#include "weft/recipe/lambda_search.h"

namespace weft::test {
namespace {

LambdaSearch searched(const std::function<double(double)>& ratio_of) {
  LambdaSearch search;
  while (const auto lambda = search.next()) search.tried(ratio_of(*lambda));
  return search;
}

// Wherever the band lies on the grid, it is found in at most four trials.
TEST(LambdaSearch, FindsTheBandInFourTrials) {
  for (double edge = 2e-6; edge < 20.0; edge *= 1.7) {
    // Falls from 1.3 to 0 as a logistic of log λ, slowly enough for the grid.
    const auto ratio = [&](double lambda) { return 1.3 / (1.0 + std::pow(lambda / edge, 0.35)); };
    const LambdaSearch search = searched(ratio);
    const LambdaSearch::Trial found = search.found();
    EXPECT_LE(search.trials().size(), 4u) << edge;
    EXPECT_GE(found.ratio, 0.60) << edge;
    EXPECT_LE(found.ratio, 0.95) << edge;
    EXPECT_EQ(found.ratio, ratio(found.lambda));
  }
}

TEST(LambdaSearch, EndsWithTheFirstInTheBand) {
  const LambdaSearch search = searched([](double) { return 0.8; });
  ASSERT_EQ(search.trials().size(), 1u);
  EXPECT_EQ(search.found().lambda, 3e-3) << "the middle of the grid";
  EXPECT_EQ(searched([](double) { return 0.60; }).trials().size(), 1u);
  EXPECT_EQ(searched([](double) { return 0.95; }).trials().size(), 1u);
}

// A ratio that jumps over the band, or never comes near it.
TEST(LambdaSearch, TakesTheClosestIfNoneFits) {
  const auto jumping = [](double low, double high) {
    return [=](double lambda) { return lambda < 5e-4 ? high : low; };
  };
  EXPECT_EQ(searched(jumping(0.5, 1.5)).found().lambda, 3e-3) << "0.5 is closer than 1.5";
  EXPECT_EQ(searched(jumping(0.1, 1.0)).found().ratio, 1.0);
  const LambdaSearch never = searched([](double) { return 2.0; });
  EXPECT_EQ(never.trials().back().lambda, 10.0);
  const LambdaSearch frozen = searched([](double) { return 0.0; });
  EXPECT_EQ(frozen.trials().back().lambda, 1e-6);
  EXPECT_EQ(frozen.found().ratio, 0.0);
}

TEST(LambdaSearch, RefusesWhatIsNoRatio) {
  LambdaSearch search;
  EXPECT_TRUE(contains(message_of([&] { search.found(); }), "no lambda was tried"));
  for (const double wrong :
       {-0.1, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(contains(message_of([&] { search.tried(wrong); }), "a ratio of flip rates"));
  }
  search.tried(0.7);
  EXPECT_TRUE(contains(message_of([&] { search.tried(0.7); }), "is over"));
}

}  // namespace
}  // namespace weft::test
