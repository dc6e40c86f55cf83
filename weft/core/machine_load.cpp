#include "weft/core/machine_load.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace weft {
namespace {

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double own_seconds() {
  double sum = 0.0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage usage{};
    if (getrusage(who, &usage) != 0) continue;
    for (const timeval& t : {usage.ru_utime, usage.ru_stime}) {
      sum += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    }
  }
  return sum;
}

std::vector<int> cpus_of_this_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

double busy_now() {
  std::ifstream file("/proc/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return MachineLoad::busy_seconds(text, cpus_of_this_process());
}

}  // namespace

// A line is "cpuN user nice system idle iowait irq softirq steal guest guest_nice", in ticks; time
// of guests is in that of users already.
double MachineLoad::busy_seconds(std::string_view stat, const std::vector<int>& cpus) {
  constexpr int kIdle = 3, kIoWait = 4, kColumns = 8;
  double ticks = 0.0;
  std::istringstream lines{std::string(stat)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu") || line.starts_with("cpu ")) continue;
    std::istringstream words(line.substr(3));
    int cpu = -1;
    words >> cpu;
    if (std::ranges::find(cpus, cpu) == cpus.end()) continue;
    double value = 0.0;
    for (int column = 0; column < kColumns && words >> value; ++column) {
      if (column != kIdle && column != kIoWait) ticks += value;
    }
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

MachineLoad::MachineLoad()
    : cpus_(static_cast<int>(cpus_of_this_process().size())),
      wall_(wall_seconds()),
      busy_(busy_now()),
      own_(own_seconds()) {}

double MachineLoad::others(double busy, double own, double wall) {
  constexpr double kShortest = 0.05;  // ticks are of 10 ms
  return wall < kShortest ? 0.0 : std::max(0.0, busy - own) / wall;
}

double MachineLoad::others() const {
  return others(busy_now() - busy_, own_seconds() - own_, wall_seconds() - wall_);
}

bool MachineLoad::is_busy() const { return others() >= std::max(0.25, 0.02 * cpus_); }

}  // namespace weft
