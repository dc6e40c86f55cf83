// The removal schedule of LBC between its end points, at every step, against the formula of the
// paper in whole numbers.
#include <gtest/gtest.h>

#include <vector>

#include "weft/recipe/best_combination.h"
#include "weft/recipe/layer_state.h"

namespace weft {
namespace {

// C(n, k) by Pascal's triangle.
uint64_t choose_exactly(int n, int k) {
  std::vector<uint64_t> row = {1};
  for (int i = 0; i < n; ++i) {
    row.push_back(0);
    for (size_t j = row.size() - 1; j > 0; --j) row[j] += row[j - 1];
  }
  return row[static_cast<size_t>(k)];
}

// 1 + ceil((C − 1) · ((end − t) / end)^power) subsets of a group.
uint64_t alive_subsets(uint64_t subsets, int64_t t, int64_t end, int power) {
  uint64_t left = subsets - 1, whole = 1;
  for (int i = 0; i < power; ++i) {
    left *= static_cast<uint64_t>(std::max<int64_t>(end - t, 0));
    whole *= static_cast<uint64_t>(end);
  }
  return 1 + (left + whole - 1) / whole;
}

// Above kMaxSubsets weights are removed, not subsets: the fewest that hold that many subsets.
uint64_t alive_candidates(int keep, int length, bool factorised, int64_t t, int64_t end,
                          int power) {
  if (length <= keep) return factorised ? static_cast<uint64_t>(length) : 1;
  const uint64_t subsets = alive_subsets(choose_exactly(length, keep), t, end, power);
  if (!factorised) return subsets;
  int weights = keep;
  while (choose_exactly(weights, keep) < subsets) ++weights;
  return static_cast<uint64_t>(weights);
}

struct ScheduleCase {
  const char* pattern;
  int64_t ins;  // the last group of a row is shorter where the group does not divide them
  const char* recipe;
  int64_t total_steps, head, end;  // removal begins after `head` steps and ends at step `end`
  int power;
};

TEST(LbcSchedule, IsTheFormulaAtEveryStep) {
  const ScheduleCase runs[] = {
      {"2:4", 10, "lbc", 120, 0, 60, 3},
      {"1:4", 8, "lbc+removal_power=4", 90, 0, 45, 4},
      {"4:8", 19, "lbc+removal_end=0.75", 160, 0, 120, 3},
      {"1:16", 37, "lbc", 100, 0, 50, 3},
      {"2:16", 32, "lbc+removal_power=1", 130, 0, 65, 1},
      // One score for each weight from here on.
      {"8:16", 32, "lbc", 120, 0, 60, 3},
      {"8:16", 37, "lbc+removal_power=4", 90, 0, 45, 4},
      {"4:16", 44, "lbc+dense_head=0.25+removal_end=0.75", 200, 50, 150, 3},
      {"2:32", 70, "lbc+removal_power=2", 110, 0, 55, 2},
      {"16:32", 32, "lbc", 400, 0, 200, 3},
  };
  for (const ScheduleCase& run : runs) {
    SCOPED_TRACE(fmt::format("{} {} at {} inputs", run.recipe, run.pattern, run.ins));
    const Pattern pattern = Pattern::parse(run.pattern);
    const WeightShape shape{3, run.ins, 2};
    const BestCombination lbc(shape, pattern);
    const Grouping grouping(shape, pattern);
    const bool factorised =
        choose_exactly(pattern.group(), pattern.keep()) > static_cast<uint64_t>(kMaxSubsets);
    EXPECT_EQ(lbc.candidates() == pattern.group() && pattern.keep() > 1, factorised);

    const Recipe recipe = Recipe::parse(run.recipe);
    const std::vector<float> weights(static_cast<size_t>(shape.outs * shape.cols()), 1.0f);
    std::vector<float> scores(static_cast<size_t>(lbc.scores()));
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = static_cast<float>(i * 7919 % 1009);
    LayerInput input;
    input.weights = weights.data();
    input.shape = shape;
    input.pattern = pattern;
    input.recipe = &recipe;
    input.total_steps = run.total_steps;
    input.scores = scores;
    LayerState state;
    for (state.step = 0; state.step <= run.total_steps; ++state.step) {
      bring_up_to_date(input, state);
      if (state.step < run.head) {
        ASSERT_FALSE(state.sparse()) << "step " << state.step;
        continue;
      }
      for (int64_t row = 0; row < state.alive.rows(); ++row) {
        const Group group = grouping.group(row % grouping.groups());
        uint64_t alive = 0;
        for (int64_t i = 0; i < state.alive.cols(); ++i) alive += state.alive.at(row, i) ? 1 : 0;
        ASSERT_EQ(alive, alive_candidates(pattern.keep(), group.length, factorised,
                                          state.step - run.head, run.end - run.head, run.power))
            << "step " << state.step << ", group " << row << " of " << group.length;
      }
    }
  }
}

}  // namespace
}  // namespace weft
