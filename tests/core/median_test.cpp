#include "weft/core/median.h"

#include <gtest/gtest.h>

#include "weft/core/error.h"

namespace weft {
namespace {

TEST(Median, AndOtherQuantiles) {
  EXPECT_EQ(median({3.0, 1.0, 2.0}), 2.0);
  EXPECT_EQ(median({4.0, 1.0, 2.0, 3.0}), 2.5);
  EXPECT_EQ(quantile({5.0, 1.0, 3.0, 2.0, 4.0}, 0.25), 2.0);
  EXPECT_EQ(quantile({5.0, 1.0, 3.0, 2.0, 4.0}, 1.0), 5.0);
  EXPECT_EQ(quantile({0.0, 10.0}, 0.75), 7.5);
  EXPECT_THROW(median({}), Error);
}

}  // namespace
}  // namespace weft
