// MachineLoad: the CPU time that other processes used since some moment. Timings taken beside other
// work are less reliable; programs that time can warn of it.
//
// Linux counts the busy time of every CPU in /proc/stat, in a virtual machine with the time that
// others took from it. What this process and its children used is subtracted; so are CPUs that it
// may not run on. Where the counters are missing, nothing is known, and others() is 0.
#pragma once

#include <string_view>
#include <vector>

namespace weft {

class MachineLoad {
 public:
  MachineLoad();

  // CPUs that others have kept busy, on average, since the construction.
  double others() const;
  // Whether that is enough to disturb timings: a quarter of a CPU, or 2 % of many.
  bool is_busy() const;
  int cpus() const { return cpus_; }  // that this process may run on

  // Seconds in which these CPUs were busy, by the text of /proc/stat.
  static double busy_seconds(std::string_view stat, const std::vector<int>& cpus);
  // CPUs kept busy by others: `busy` of all, `own` of this process, in `wall` seconds.
  static double others(double busy, double own, double wall);

 private:
  int cpus_;
  double wall_, busy_, own_;
};

}  // namespace weft
