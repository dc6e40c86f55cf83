// Mask diversity: exact counts against the literature and against brute force, the paper's formula,
// and how layers, edges, taps and sharing add up. Figures are those of methods.md, section 2.1.
#include "weft/mask/diversity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/weights.h"

namespace weft {
namespace {

double log2_choose(double from, double take) {
  return (std::lgamma(from + 1) - std::lgamma(take + 1) - std::lgamma(from - take + 1)) /
         std::log(2.0);
}

double log2_decimal(const std::string& digits) {
  return static_cast<double>(std::log2(std::stold(digits)));  // 19 digits of them count
}

TEST(CountTransposable, AgreesWithTheLiterature) {
  EXPECT_EQ(count_transposable(1, 1), "1");
  EXPECT_EQ(count_transposable(2, 1), "2");
  EXPECT_EQ(count_transposable(4, 1), "24");
  EXPECT_EQ(count_transposable(4, 2), "90");
  EXPECT_EQ(count_transposable(8, 1), "40320");
  EXPECT_EQ(count_transposable(8, 2), "187530840");
  EXPECT_EQ(count_transposable(8, 4), "116963796250");
  EXPECT_EQ(count_transposable(10, 5), "6736218287430460752");
  EXPECT_EQ(count_transposable(12, 6), "64051375889927380035549804336");
  EXPECT_EQ(count_transposable(16, 8), "34812290428176298285394893936773707951192224124239796250");
}

TEST(CountTransposable, AgreesWithBruteForceOfSmallTiles) {
  for (int group = 1; group <= 4; ++group) {
    for (int keep = 1; keep <= group; ++keep) {
      EXPECT_EQ(count_transposable(group, keep),
                std::to_string(full_masks(group, group, keep).size()))
          << keep << ":" << group;
    }
  }
}

TEST(CountTransposable, IsTheSameForOnesAndZeros) {
  for (int group = 2; group <= 11; ++group) {
    for (int keep = 1; keep < group; ++keep) {
      EXPECT_EQ(count_transposable(group, keep), count_transposable(group, group - keep))
          << keep << ":" << group;
    }
    EXPECT_EQ(count_transposable(group, group), "1");
  }
}

TEST(CountTransposable, CountsPermutationsAtOneOfAnyGroup) {
  for (int group = 1; group <= 20; ++group) {  // 20! is the last in 64 bits
    uint64_t factorial = 1;
    for (int i = 2; i <= group; ++i) factorial *= static_cast<uint64_t>(i);
    EXPECT_EQ(count_transposable(group, 1), std::to_string(factorial));
  }
  const auto largest = count_transposable(64, 1);
  ASSERT_TRUE(largest);
  EXPECT_NEAR(log2_decimal(*largest), std::lgamma(65.0) / std::log(2.0), 1e-9);
}

TEST(CountTransposable, IsNoMoreThanTheMasksOfOneAxis) {
  for (int group = 1; group <= 12; ++group) {
    for (int keep = 1; keep <= group; ++keep) {
      const auto counted = count_transposable(group, keep);
      ASSERT_TRUE(counted) << keep << ":" << group;
      EXPECT_LE(log2_decimal(*counted), group * log2_choose(group, keep) + 1e-9)
          << keep << ":" << group;
    }
  }
}

TEST(CountTransposable, GivesUpWhereCountingWouldTakeForever) {
  EXPECT_EQ(count_transposable(32, 16), std::nullopt);
  EXPECT_EQ(count_transposable(64, 32), std::nullopt);
}

TEST(CountTransposable, RefusesWhatIsNoPattern) {
  EXPECT_THROW(count_transposable(4, 5), Error);
  EXPECT_THROW(count_transposable(4, 0), Error);
  EXPECT_THROW(count_transposable(65, 1), Error);
  EXPECT_THROW(log2_transposable_estimate(4, 5), Error);
}

TEST(TransposableEstimate, IsWithinAFifthOfABitOfTheCount) {
  for (int group = 4; group <= 12; ++group) {
    for (int keep = 1; keep <= group; ++keep) {
      const auto counted = count_transposable(group, keep);
      ASSERT_TRUE(counted);
      EXPECT_NEAR(log2_transposable_estimate(group, keep), log2_decimal(*counted), 0.2)
          << keep << ":" << group;
    }
  }
  EXPECT_NEAR(log2_transposable_estimate(16, 8), 184.5, 0.2);
}

// Brute force over the tiles that a matrix falls into.
double brute_log2_transposable(const WeightShape& shape, const Pattern& pattern) {
  double bits = 0;
  for (int64_t row = 0; row < shape.outs; row += pattern.group()) {
    for (int64_t col = 0; col < shape.ins; col += pattern.group()) {
      const auto rows = static_cast<int>(std::min<int64_t>(pattern.group(), shape.outs - row));
      const auto cols = static_cast<int>(std::min<int64_t>(pattern.group(), shape.ins - col));
      bits += std::log2(static_cast<double>(full_masks(rows, cols, pattern.keep()).size()));
    }
  }
  return bits * static_cast<double>(shape.taps);
}

TEST(Diversity, CountsShortTilesAsBruteForceDoes) {
  for (int group = 1; group <= 4; ++group) {
    for (int keep = 1; keep <= group; ++keep) {
      for (int64_t outs = 0; outs <= group + 2; ++outs) {
        for (int64_t ins = 0; ins <= group + 2; ++ins) {
          const WeightShape shape{outs, ins};
          const Pattern pattern(keep, group);
          SCOPED_TRACE(trace("diversity", shape, pattern));
          const Diversity found = diversity(shape, pattern);
          ASSERT_NEAR(found.log2_transposable, brute_log2_transposable(shape, pattern), 1e-9);
          ASSERT_TRUE(found.transposable_exact);
          ASSERT_EQ(found.weights, outs * ins);
        }
      }
    }
  }
}

TEST(Diversity, CountsShortGroupsAlongInputs) {
  // Rows of 6 at 2:4: a group of 4 and one of 2, of which both are kept; at 1:4, one of the 2.
  EXPECT_NEAR(diversity({3, 6}, Pattern(2, 4)).log2_nm, 3 * std::log2(6), 1e-9);
  EXPECT_NEAR(diversity({3, 6}, Pattern(1, 4)).log2_nm, 3 * std::log2(4 * 2), 1e-9);
  // As many kept as N:M keeps: 3 rows of 2 + 2, of 18 weights.
  EXPECT_NEAR(diversity({3, 6}, Pattern(2, 4)).log2_unstructured, log2_choose(18, 12), 1e-9);
}

struct BitsPerWeight {
  int keep, group;
  double nm, transposable;
};

TEST(Diversity, AgreesWithTheTableOfBitsPerWeight) {
  for (const BitsPerWeight& line :
       {BitsPerWeight{4, 8, 0.766, 0.574}, BitsPerWeight{2, 4, 0.646, 0.406},
        BitsPerWeight{8, 16, 0.853, 0.721}, BitsPerWeight{2, 8, 0.601, 0.429},
        BitsPerWeight{1, 4, 0.500, 0.287}, BitsPerWeight{6, 12, 0.821, 0.665},
        BitsPerWeight{5, 10, 0.798, 0.625}}) {
    const Pattern pattern(line.keep, line.group);
    const int64_t side = line.group < 8 ? 8 : line.group;
    const Diversity found = diversity({side, side}, pattern);
    const auto weights = static_cast<double>(found.weights);
    EXPECT_NEAR(found.log2_nm / weights, line.nm, 0.0006) << pattern.str();
    EXPECT_NEAR(found.log2_transposable / weights, line.transposable, 0.0006) << pattern.str();
    EXPECT_TRUE(found.transposable_exact) << pattern.str();
  }
  const Diversity half = diversity({8, 8}, Pattern(4, 8));
  EXPECT_NEAR(half.log2_unstructured / 64, 0.948, 0.0006);
  EXPECT_NEAR(half.log2_unstructured, std::log2(1832624140942590534.0), 1e-9);  // C(64, 32)
  EXPECT_NEAR(half.log2_nm, 8 * std::log2(70), 1e-9);
  EXPECT_NEAR(half.log2_transposable, std::log2(116963796250.0), 1e-9);
}

TEST(Diversity, GivesThePapersFormulaBesideTheCount) {
  const auto paper = [](int keep, int group) {
    return diversity({group, group}, Pattern(keep, group)).log2_transposable_paper;
  };
  EXPECT_NEAR(paper(2, 4), std::log2(144), 1e-9);
  EXPECT_NEAR(paper(3, 4), std::log2(288), 1e-9);
  EXPECT_NEAR(paper(4, 8), std::log2(40320.0 * 5040 * 720 * 120), 1e-9);  // 1.7557e13
  // It is more than transposable masks could be: more than the masks of one axis.
  EXPECT_GT(paper(3, 4), diversity({4, 4}, Pattern(3, 4)).log2_nm);
  EXPECT_GT(paper(8, 16), diversity({16, 16}, Pattern(8, 16)).log2_nm);
  for (int group = 1; group <= 12; ++group) {
    const Diversity permutations = diversity({group, group}, Pattern(1, group));
    EXPECT_NEAR(paper(1, group), permutations.log2_transposable, 1e-9) << "right at 1:" << group;
  }
  for (int keep = 2; keep <= 6; ++keep) {
    const auto counted = count_transposable(2 * keep, keep);
    EXPECT_GT(paper(keep, 2 * keep), log2_decimal(*counted)) << "too many at half density";
  }
  // 10! 9! = 1316818944000 of 1371785398200: at low density it counts too few.
  EXPECT_EQ(count_transposable(10, 2), "1371785398200");
  EXPECT_NEAR(paper(2, 10), std::log2(1316818944000.0), 1e-9);
  for (int group = 10; group <= 64; group += 6) {
    EXPECT_LT(paper(2, group), log2_decimal(*count_transposable(group, 2))) << "2:" << group;
  }
}

TEST(Diversity, AddsUpOverTilesAndLayers) {
  const Pattern pattern(2, 4);
  Diversity sum = diversity({8, 12}, pattern);
  EXPECT_NEAR(sum.log2_nm, 24 * std::log2(6), 1e-9);
  EXPECT_NEAR(sum.log2_transposable, 6 * std::log2(90), 1e-9);
  EXPECT_NEAR(sum.log2_transposable_paper, 6 * std::log2(144), 1e-9);

  const Diversity other = diversity({4, 5}, pattern);
  const Diversity before = sum;
  sum += other;
  EXPECT_EQ(sum.log2_unstructured, before.log2_unstructured + other.log2_unstructured);
  EXPECT_EQ(sum.log2_nm, before.log2_nm + other.log2_nm);
  EXPECT_EQ(sum.log2_transposable, before.log2_transposable + other.log2_transposable);
  EXPECT_EQ(sum.log2_transposable_paper,
            before.log2_transposable_paper + other.log2_transposable_paper);
  EXPECT_EQ(sum.weights, 96 + 20);
  EXPECT_TRUE(sum.transposable_exact);
}

TEST(Diversity, CountsEveryTapOfAConvolution) {
  for (const Pattern& pattern : {Pattern(2, 4), Pattern(1, 4, 2), Pattern(3, 5)}) {
    const Diversity one = diversity({10, 7}, pattern), nine = diversity({10, 7, 9}, pattern);
    EXPECT_NEAR(nine.log2_nm, 9 * one.log2_nm, 1e-9);
    EXPECT_NEAR(nine.log2_transposable, 9 * one.log2_transposable, 1e-9);
    EXPECT_NEAR(nine.log2_transposable_paper, 9 * one.log2_transposable_paper, 1e-9);
    EXPECT_EQ(nine.weights, 9 * one.weights);
  }
  EXPECT_NEAR(diversity({4, 4, 9}, Pattern(2, 4)).log2_unstructured, log2_choose(144, 72), 1e-9);
  EXPECT_EQ(diversity({4, 4, 0}, Pattern(2, 4)).log2_nm, 0);
}

TEST(Diversity, CountsWhatSharesOnce) {
  // 16 x 8 at 2:4x2: rows 0-7 are 4 classes, rows 8-15 too; as transposable, columns as well.
  const Diversity shared = diversity({16, 8}, Pattern(2, 4, 2));
  EXPECT_NEAR(shared.log2_nm, 8 * 2 * std::log2(6), 1e-9);
  EXPECT_NEAR(shared.log2_transposable, 2 * std::log2(90), 1e-9);
  EXPECT_NEAR(shared.log2_transposable_paper, 2 * std::log2(144), 1e-9);
  EXPECT_NEAR(shared.log2_unstructured, log2_choose(128, 64), 1e-9);
  // Edges: 11 rows are 4 + 3 classes, 10 columns are 4 + 2.
  const Diversity edge = diversity({11, 10}, Pattern(2, 4, 2));
  EXPECT_NEAR(edge.log2_nm, 7 * 2 * std::log2(6), 1e-9);
  EXPECT_NEAR(edge.log2_transposable, brute_log2_transposable({7, 6}, Pattern(2, 4)), 1e-9);
}

TEST(Diversity, SaysWhenItEstimates) {
  const Diversity large = diversity({32, 64}, Pattern(16, 32));
  EXPECT_FALSE(large.transposable_exact);
  EXPECT_NEAR(large.log2_transposable, 2 * log2_transposable_estimate(32, 16), 1e-9);
  EXPECT_LT(large.log2_transposable, large.log2_nm);
  EXPECT_LT(large.log2_nm, large.log2_unstructured);

  Diversity sum = diversity({8, 8}, Pattern(4, 8));
  sum += large;
  EXPECT_FALSE(sum.transposable_exact);

  // Short tiles: no more than the side that is full allows alone.
  EXPECT_LT(diversity({31, 32}, Pattern(16, 32)).log2_transposable, 31 * log2_choose(32, 16));
  EXPECT_LT(diversity({20, 30}, Pattern(16, 32)).log2_transposable, 20 * log2_choose(30, 16));
  EXPECT_LT(diversity({32, 17}, Pattern(16, 32)).log2_transposable, 17 * log2_choose(32, 16));
}

TEST(Diversity, RefusesNegativeSizes) {
  EXPECT_THROW(diversity({-1, 4}, Pattern(2, 4)), Error);
  EXPECT_THROW(diversity({4, -1}, Pattern(2, 4)), Error);
  EXPECT_THROW(diversity({4, 4, -1}, Pattern(2, 4)), Error);
}

}  // namespace
}  // namespace weft
