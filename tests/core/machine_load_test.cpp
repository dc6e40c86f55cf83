#include "weft/core/machine_load.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace weft {
namespace {

// Columns: user nice system idle iowait irq softirq steal.
TEST(MachineLoad, CountsTheBusyTimeOfTheCpusThatItMayUse) {
  const char* stat =
      "cpu  9 9 9 9 9 9 9 9 0 0\n"
      "cpu0 100 20 30 5000 600 1 2 3 0 0\n"
      "cpu1 1000 0 0 5000 0 0 0 0 0 0\n"
      "intr 12345 1 2 3\n";
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  EXPECT_DOUBLE_EQ(MachineLoad::busy_seconds(stat, {0}), 156 / ticks);
  EXPECT_DOUBLE_EQ(MachineLoad::busy_seconds(stat, {0, 1}), 1156 / ticks);
  EXPECT_EQ(MachineLoad::busy_seconds("", {0}), 0.0);
}

TEST(MachineLoad, LeavesOutThisProcess) {
  EXPECT_DOUBLE_EQ(MachineLoad::others(/*busy=*/3.0, /*own=*/2.0, /*wall=*/2.0), 0.5);
  EXPECT_EQ(MachineLoad::others(1.9, 2.0, 2.0), 0.0) << "ticks are coarse";
  EXPECT_EQ(MachineLoad::others(0.04, 0.0, 0.01), 0.0) << "too short to say";
}

}  // namespace
}  // namespace weft
