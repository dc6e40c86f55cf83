// The search for a permutation of outputs.
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "tests/recipe/masks.h"
#include "weft/core/parallel.h"
#include "weft/recipe/permutation.h"

namespace weft::test {
namespace {

TEST(Permutation, GoalsAreWhatTheySay) {
  for (const char* text : {"2:4", "1:4", "4:8", "1:16", "2:4x2"}) {
    const Pattern pattern = Pattern::parse(text);
    // Groups that end at the edge, and more columns than are summed in one go.
    for (const WeightShape& shape : {WeightShape{70, 131, 1}, WeightShape{32, 5000, 1}}) {
      const std::vector<float> w = gaussian(shape.outs * shape.cols(), 21);
      const Mask forward = top_n(w, shape, pattern);
      for (const auto goal : {PermutationGoal::kKept, PermutationGoal::kEligible}) {
        const auto counted_for = [&](const std::vector<int64_t>& permutation) {
          const auto [kept, eligible] = counted(forward, pattern, permutation);
          return goal == PermutationGoal::kKept ? kept : eligible;
        };
        std::vector<int64_t> permutation = identity_permutation(shape.outs);
        for (const auto search : {PermutationSearch::kRandom, PermutationSearch::kSwap}) {
          const int64_t before = counted_for(permutation);
          EXPECT_EQ(permutation_value(forward, pattern, goal, permutation), before) << text;
          improve_permutation(forward, pattern, {search, goal, 60}, Rng(3), permutation);
          // Some random ones may all be worse than the present.
          EXPECT_GE(counted_for(permutation),
                    search == PermutationSearch::kSwap ? before + 1 : before)
              << text;
        }
        EXPECT_EQ(permutation_value(forward, pattern, goal, permutation), counted_for(permutation))
            << text;
      }
    }
  }
}

TEST(Permutation, MoreTriesAreNeverWorseAndSwapsBeatChance) {
  const WeightShape shape{64, 64, 1};
  const Pattern pattern(2, 4);
  const std::vector<float> w = gaussian(shape.outs * shape.cols(), 31);
  const Mask forward = top_n(w, shape, pattern);
  for (const auto goal : {PermutationGoal::kKept, PermutationGoal::kEligible}) {
    std::map<PermutationSearch, int64_t> best;
    for (const auto search : {PermutationSearch::kRandom, PermutationSearch::kSwap}) {
      int64_t last = permutation_value(forward, pattern, goal, identity_permutation(shape.outs));
      for (const int64_t tries : {1, 10, 100, 1000}) {
        std::vector<int64_t> permutation = identity_permutation(shape.outs);
        improve_permutation(forward, pattern, {search, goal, tries}, Rng(9), permutation);
        const int64_t value = permutation_value(forward, pattern, goal, permutation);
        EXPECT_GE(value, last);
        last = value;
      }
      best[search] = last;
    }
    EXPECT_GT(best[PermutationSearch::kSwap], best[PermutationSearch::kRandom]);
  }
}

TEST(Permutation, DoesNotDependOnThreads) {
  const WeightShape shape{60, 200, 1};
  const std::vector<float> w = gaussian(shape.outs * shape.cols(), 31);
  const Mask forward = top_n(w, shape, Pattern(2, 4));
  std::vector<int64_t> one = identity_permutation(shape.outs), two = one;
  const int before = threads();
  set_threads(1);
  improve_permutation(forward, Pattern(2, 4), {}, Rng(9), one);
  set_threads(2);
  improve_permutation(forward, Pattern(2, 4), {}, Rng(9), two);
  set_threads(before);
  EXPECT_EQ(one, two);
}

}  // namespace
}  // namespace weft::test
