#include "weft/run/memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace weft {

// Not getrusage: its figure survives exec, and so would be the parent's.
uint64_t peak_resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    uint64_t kilobytes = 0;
    if (word == "VmHWM:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

uint64_t memory_bytes() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return 0;
  const uint64_t machine = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page);
  uint64_t limit = 0;  // the file has the word "max" where there is no limit
  std::ifstream container("/sys/fs/cgroup/memory.max");
  return container >> limit ? std::min(machine, limit) : machine;
}

}  // namespace weft
