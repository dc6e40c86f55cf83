// parallel_for and the number of threads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support.h"
#include "weft/core/error.h"
#include "weft/core/parallel.h"
#include "weft/core/rng.h"

namespace weft {
namespace {

using test::contains;
using test::message_of;

class ParallelFor : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_threads(GetParam()); }
  void TearDown() override { set_threads(before_); }

 private:
  int before_ = threads();
};

TEST_P(ParallelFor, RunsEveryItemOnce) {
  EXPECT_EQ(threads(), GetParam());
  for (const int64_t items : {0, 1, 2, 3, 1000}) {
    std::vector<int> runs(static_cast<size_t>(items));
    parallel_for(items, [&](int64_t item) { ++runs.at(static_cast<size_t>(item)); });
    EXPECT_EQ(std::count(runs.begin(), runs.end(), 1), items);
  }
}

TEST_P(ParallelFor, ResultDoesNotDependOnTheThreads) {
  const Rng rng(1);
  std::vector<double> result(500);
  parallel_for(500, [&](int64_t item) {
    const auto index = static_cast<uint64_t>(item);
    for (uint64_t i = 0; i <= index; ++i) result[index] += rng.normal(index * 1000 + i);
  });
  for (uint64_t index = 0; index < 500; ++index) {
    double expected = 0;
    for (uint64_t i = 0; i <= index; ++i) expected += rng.normal(index * 1000 + i);
    ASSERT_EQ(result[index], expected) << "item " << index;
  }
}

TEST_P(ParallelFor, TheExceptionOfTheLowestItemWins) {
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::vector<int> runs(200);
    const std::string message = message_of([&] {
      parallel_for(200, [&](int64_t item) {
        ++runs[static_cast<size_t>(item)];
        if (item % 50 == 17) throw Error(fmt::format("item {}", item));
      });
    });
    ASSERT_EQ(message, "item 17");
    // What lies below the failure is done in any case, so that the choice is a fair one.
    ASSERT_EQ(std::count(runs.begin(), runs.begin() + 18, 1), 18);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ParallelFor, ::testing::Values(1, 2, 3));

TEST(Threads, RefusesCountsOutOfRange) {
  const int before = threads();
  for (const int count : {0, -1, kMaxThreads + 1}) {
    EXPECT_TRUE(contains(message_of([&] { set_threads(count); }), "accepted is 1 to 1024"));
  }
  EXPECT_EQ(threads(), before);
}

}  // namespace
}  // namespace weft
